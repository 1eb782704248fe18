"""Every code that an error of a session can have is one of which it is said what to do."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import daemon
from daemon import fixes
from daemon.fixes import FIXES
from daemon.protocol.records import error_draft
from daemon.provider import errors
from daemon.provider.base import End
from daemon.view import Fold
from tests.daemon.test_view import stored

SOURCES = [
    path
    for part in ("provider", "harness")
    for path in sorted((Path(daemon.__file__).parent / part).glob("**/*.py"))
]
MAKERS = {
    "error_draft": 0,
    "_fail": 1,
}  # what makes an error's record, and which of its arguments the code is
RETRIED = {  # what another try may help with, without anything that is done first
    *("timeout", "stalled", "cut", "malformed", "provider", "paused"),
    *("rate_limit", "overloaded", "busy", "server"),  # in a while
}


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def codes(tree: ast.AST) -> Iterator[str]:
    """The codes that are written in a module: of a ProviderError, set on one, or of an error's record."""
    for node in ast.walk(tree):
        found: list[ast.AST] = []
        if isinstance(node, ast.Call):
            if called(node) == "ProviderError":
                found = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            elif called(node) in MAKERS:
                found = [*node.args[MAKERS[called(node)] :][:1]]
        elif isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
            if isinstance(node.value, ast.Tuple):
                pairs = [
                    pair
                    for target in node.targets
                    if isinstance(target, ast.Tuple)
                    for pair in zip(target.elts, node.value.elts, strict=True)
                ]
            found = [value for target, value in pairs if getattr(target, "attr", "") == "code"]
        yield from (
            one.value for one in found if isinstance(one, ast.Constant) and isinstance(one.value, str)
        )


def returned(path: Path, name: str) -> set[str]:
    """The texts that a function gives back."""
    tree = ast.parse(path.read_text())
    (function,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    return {
        one.value
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
        for one in ast.walk(node.value)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def raised() -> set[str]:
    found = {code for path in SOURCES for code in codes(ast.parse(path.read_text()))}
    classes = returned(Path(errors.__file__), "_class")
    limits = returned(Path(daemon.__file__).parent / "harness/limits.py", "code")
    return found | classes | limits | set(get_args(End)) | {"provider"}


def test_of_every_code_it_is_said_what_to_do_and_of_no_other() -> None:
    found = raised()
    assert {"invalid", "region", "tls", "url", "stopped", "no_space", "internal", "limit", "auth"} <= found
    assert found - FIXES.keys() == set(), (
        "raised in daemon/provider or daemon/harness, and not in daemon/fixes.py"
    )
    assert FIXES.keys() - found == set(), "in daemon/fixes.py, and raised nowhere"


def test_a_bare_retry_is_said_only_where_another_try_may_help() -> None:
    bare = {code for code, fix in FIXES.items() if fix.session in (fixes.RETRY, "retry in a while")}
    assert bare == RETRIED
    assert errors.RETRYABLE - {"model_bad_call"} <= bare


@pytest.mark.parametrize("code", sorted(FIXES))
def test_the_log_says_it_without_a_name_that_it_does_not_know(code: str) -> None:
    item = Fold().add(stored(error_draft(code, "why"), 3))
    assert item.hint == FIXES[code].session
    assert item.hint.isascii()
    assert "NAME" not in item.hint


def test_a_code_of_another_release_is_worth_a_retry() -> None:
    assert (fixes.in_session("later"), fixes.after_test("later", "x")) == ("retry", "try again")
