import pytest

from daemon.provider.base import ProviderError
from daemon.provider.retry import LEAST, RetryPolicy

POLICY = RetryPolicy(random=lambda: 1.0, now=lambda: 1_764_470_000.0)


def failure(code: str = "server", after: float | None = None, *, retryable: bool = True) -> ProviderError:
    return ProviderError(
        "it broke", code=code, status=500, retryable=retryable, retry_after=after, request_id="r"
    )


def given_up(error: ProviderError, tried: int = 1, elapsed: float = 0.0) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        POLICY.wait(error, tried, elapsed)
    return caught.value


def test_the_wait_doubles_from_a_second_up_to_its_limit() -> None:
    policy = RetryPolicy(tries=9, random=lambda: 1.0)
    assert [policy.wait(failure(), tried, 0) for tried in range(1, 9)] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_the_wait_is_drawn_from_nothing_up_to_that_but_never_nothing() -> None:
    assert RetryPolicy(random=lambda: 0.5).wait(failure(), 3, 0) == 2
    assert RetryPolicy(random=lambda: 0.0).wait(failure(), 3, 0) == LEAST


def test_a_provider_is_given_at_least_the_time_it_asks_for() -> None:
    assert POLICY.wait(failure(after=7.5), 1, 0) == 7.5
    assert POLICY.wait(failure(after=0.5), 2, 0) == 2
    assert POLICY.wait(failure(after=300), 1, 0) == 300


def test_a_longer_wait_than_allowed_fails_at_once_and_says_until_when() -> None:
    error = given_up(failure(after=3600))
    assert "asks to wait 3600 s, until 2025-11-30 03:33:20 UTC" in error.message
    assert (error.code, error.status, error.request_id) == ("server", 500, "r")


def test_what_cannot_be_mended_by_another_try_fails_at_once() -> None:
    error = failure(retryable=False)
    assert given_up(error) is error


def test_a_bad_call_of_the_models_own_is_tried_once_more() -> None:
    error = failure("model_bad_call")
    assert POLICY.wait(error, 1, 0) == 1
    assert given_up(error, tried=2) is error


def test_six_tries_are_made_and_no_more() -> None:
    assert POLICY.wait(failure(), 5, 0) == 16
    assert given_up(failure(), tried=6).message == "it broke; tried 6 times"


def test_ten_minutes_are_tried_and_no_more() -> None:
    assert POLICY.wait(failure(), 5, 584) == 16
    assert "tried 5 times in 585 s" in given_up(failure(), tried=5, elapsed=585).message


def test_a_wait_beyond_all_dates_is_named_by_the_last_one() -> None:
    error = ProviderError("busy", code="overloaded", retryable=True, retry_after=1e300)
    with pytest.raises(ProviderError, match="until 9999-12-31"):
        RetryPolicy().wait(error, 1, 0.0)
