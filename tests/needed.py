"""What a test needs of its machine: without it the test skips; where everything was installed for it, it fails."""

import os
from typing import Final, NoReturn

import pytest

INSTALLED: Final = "OUTRIDER_TESTS_INSTALLED"  # set by .ci/run, which installs all of it


def missing(why: str) -> NoReturn:
    """This test cannot be run here, for `why`, which names the package to install."""
    if os.environ.get(INSTALLED):
        pytest.fail(f"{why}: but .ci/run has installed what the tests need (PACKAGES)", pytrace=False)
    pytest.skip(why)
