"""What is secret in a request never stands in what is told of its failure."""

from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from daemon.provider.hiding import CUT, hidden, secrets

KEY = "sk-proj-9f/2+Zq=very-secret_0123456789"
URL = "https://ada:pass-word-1@proxy.example/v1?api-version=2024-10-21&subscription-key=q-key-0123456789"
HEADERS = {
    "Authorization": f"Bearer {KEY}",
    "x-goog-api-key": "AIza-0123456789abcdef",
    "content-type": "application/json",
    "x-team": "ml",
}


def clean(text: str) -> str:
    return hidden(text, URL, HEADERS)


def test_every_secret_of_a_request_is_one() -> None:
    assert set(secrets(URL, HEADERS)) == {
        KEY,
        f"Bearer {KEY}",
        "AIza-0123456789abcdef",
        "pass-word-1",
        "q-key-0123456789",
    }


def test_a_key_is_hidden_however_it_is_written() -> None:
    basic = b64encode(f"user:{KEY}".encode()).decode()
    for form in (
        KEY,
        quote(KEY, safe=""),
        quote(KEY, safe="").lower().replace(KEY[:8].lower(), KEY[:8]),
        b64encode(KEY.encode()).decode(),
        urlsafe_b64encode(KEY.encode()).decode(),
    ):
        assert clean(f"bad key {form}, sorry").startswith("bad key ***"), form
    for form in (KEY, quote(KEY, safe=""), b64encode(KEY.encode()).decode(), basic):
        assert form[10:40] not in clean(f"<{form}>")


def test_a_key_that_was_cut_short_is_hidden_and_its_common_beginning_is_not() -> None:
    assert clean(f"key {KEY[:20]}… (status 401)") == "key ***… (status 401)"
    assert (
        clean("keys begin with sk-proj-, as sk-proj-x does") == "keys begin with sk-proj-, as sk-proj-x does"
    )


def test_common_words_stay() -> None:
    text = "application/json from ml at proxy.example, 2024-10-21"
    assert clean(text) == text


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=CUT + 8, max_size=60),
    st.binary(max_size=5),
    st.binary(max_size=5),
    st.text(max_size=10),
)
def test_no_base64_of_any_key_shows_it(key: str, before: bytes, after: bytes, around: str) -> None:
    form = b64encode(before + key.encode() + after).decode()
    text = hidden(f"{around}{form}{around}", "", {"authorization": key})
    assert form not in text
    assert key not in hidden(f"{around}{key}{around}", "", {"authorization": key})
