"""Whether bash would run a piece of code as it is meant: checked by bash itself, before anything of it runs."""

import os
import re
import shutil
import subprocess
from typing import Final

from daemon.worker.refusal import Refusal

CHECK_WAIT: Final = 30.0  # seconds for the syntax check

# What simple commands are made of: words of harmless characters, plain quotes and plain variables; redirections to
# words; what stands between commands.
TOKEN: Final = re.compile(
    rb"(?P<blank>[ \t]+)"
    rb"|(?P<word>(?:[\w./:,+@%^~=*?-]|'[^'\0]*'|\"[^\"$`\\!\0]*\"|\$\w+)+)"
    rb"|(?P<whole>>&[12](?![\w./:,+@%^~=*?$'\"-]))"
    rb"|(?P<into>&?>>?(?![&|>]))"
    rb"|(?P<more>\|\|?(?!&)|&&)"
    rb"|(?P<end>;(?![;&])|\n)",
    re.ASCII,
)
RESERVED: Final = frozenset(
    b"if then elif else fi case esac for select while until do done in function time coproc "
    b"declare typeset local export readonly alias eval".split()  # these parse what follows in ways of their own
)
SIMPLE_MAX: Final = 4096  # bytes looked at; longer code is bash's to check


def program() -> str | None:
    """Where bash is on this machine."""
    return shutil.which("bash", path=os.environ.get("PATH", os.defpath) + ":/bin:/usr/bin:/usr/local/bin")


def is_simple(code: bytes) -> bool:
    """Whether code is a list of simple commands so plain that no bash could take it otherwise.

    Most of what agents run is, and starting a bash to check each would cost many times what the run does.
    """
    if len(code) > SIMPLE_MAX:
        return False
    at, wants = 0, ""  # `wants`: a word (after a redirection), a command (after `&&`), or nothing more
    begun = False  # in a command
    while at < len(code):
        token = TOKEN.match(code, at)
        if token is None:
            return False
        at = token.end()
        match token.lastgroup:
            case "word":
                number = token[0].isdigit() and code[at : at + 1] == b">"  # of a descriptor
                if (number and wants == "word") or (not begun and wants != "word" and token[0] in RESERVED):
                    return False
                begun, wants = True, ""
            case "whole" | "into" if wants != "word":
                begun = True
                wants = "word" if token.lastgroup == "into" else ""
            case "more" if begun and not wants:
                begun, wants = False, "command"
            case "end" if token[0] == b"\n" and wants != "word":
                begun = False
            case "end" if begun and not wants:
                begun = False
            case "blank":
                pass
            case _:
                return False
    return not wants


def check(code: bytes) -> None:
    """Refuse code that bash would not run as it is meant: NUL, a syntax error, an open quote or heredoc. Blocks."""
    if b"\0" in code:
        raise Refusal(
            "bad_request",
            "the code holds a NUL byte, which bash drops: write it as \\0 in printf, or use write for data",
        )
    if is_simple(code):
        return
    bash = program()
    if bash is None:
        raise Refusal("failed", "there is no bash on this worker's PATH")
    fd = os.memfd_create("code")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(code)
        os.lseek(fd, 0, os.SEEK_SET)
        path = f"/dev/fd/{fd}"
        done = subprocess.run(
            [bash, "--norc", "-O", "extglob", "-n", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(fd,),
            env={"LC_ALL": "C", "PATH": os.defpath},
            timeout=CHECK_WAIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Refusal(
            "limit", f"bash did not get through the code in {CHECK_WAIT:.0f} s: make it smaller"
        ) from None
    finally:
        os.close(fd)
    said = done.stderr.decode("utf-8", "replace").replace(f"{path}: ", "").strip()
    if done.returncode or "delimited by end-of-file" in said:
        raise Refusal("syntax", f"bash does not accept this code, nothing was run: {said[:2000]}")
