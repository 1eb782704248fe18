"""Which code is so plain that no bash has to check it: never any that bash would refuse."""

import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.worker.syntax import SIMPLE_MAX, is_simple

PIECES = [
    *(
        b" ",
        b"\n",
        b"\t",
        b"'",
        b'"',
        b"'a b'",
        b'"x y"',
        b"$A",
        b"$(",
        b"`",
        b"\\",
        b"#",
        b"!",
        b"~",
        b"*",
        b"\r",
    ),
    *(
        b"|",
        b"||",
        b"&&",
        b"&",
        b";",
        b";;",
        b">",
        b">>",
        b"<",
        b"<<",
        b"2>&1",
        b">&1",
        b"2>",
        b"&>",
        b"|&",
        b">|",
    ),
    *(
        b"(",
        b")",
        b"{",
        b"}",
        b"[[",
        b"]]",
        b"if",
        b"then",
        b"done",
        b"do",
        b"for",
        b"in",
        b"time",
        b"case",
        b"esac",
    ),
    *(b"ls", b"echo", b"a=1", b"x", b"-n", b"1", b"EOF", b"function", b"coproc", b"=("),
]


def refused(tmp_path: Path, code: bytes) -> bool:
    file = tmp_path / "code"
    file.write_bytes(code)
    said = subprocess.run(
        ["bash", "--norc", "-O", "extglob", "-n", str(file)], capture_output=True, check=False
    )
    return bool(said.returncode) or b"delimited by end-of-file" in said.stderr


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b"true",
        b"ls -la | head -5; cd /tmp && make -j2 || exit 3\n",
        b"echo 'a b' \"c d\" $HOME > f 2>&1",
        b"FOO=bar env\n\n  git status;",
        b"a &&\n  b",
    ],
)
def test_plain_code_needs_no_check(code: bytes) -> None:
    assert is_simple(code)


@pytest.mark.parametrize(
    "code",
    [
        *(
            b"echo 'abc",
            b"cat <<EOF",
            b"sleep 1 &",
            b"echo $(ls)",
            b"{ ls; }",
            b"(ls)",
            b"if true",
            b"done",
            b"f() x",
        ),
        *(
            b"a &&",
            b"| a",
            b"; a",
            b"ls >",
            b"ls 2>",
            b"> 2>a",
            b"x;&>y",
            b"a |& b",
            b"echo a\\",
            b"echo `",
            b"a=(b",
        ),
        *(b"x\0y", b"true " + b"x" * SIMPLE_MAX, b"time ls", b"! ls", b"[[ a", b"eval ls"),
    ],
)
def test_anything_else_is_left_to_bash(code: bytes) -> None:
    assert not is_simple(code)


def test_what_is_taken_for_plain_is_accepted_by_bash(tmp_path: Path) -> None:
    chance, plain = random.Random(7), set[bytes]()
    while len(plain) < 250:
        code = b"".join(chance.choice(PIECES) for _ in range(chance.randint(1, 9)))
        if is_simple(code):
            plain.add(code)
    assert [code for code in sorted(plain) if refused(tmp_path, code)] == []


@settings(max_examples=300)
@given(st.binary(max_size=40))
def test_any_bytes_are_judged(code: bytes) -> None:
    assert is_simple(code) in (True, False)
