"""Whether bash would run a piece of code as it is meant: checked by bash itself, before anything of it runs."""

import os
import shutil
import subprocess
from typing import Final

from daemon.worker.refusal import Refusal

CHECK_WAIT: Final = 30.0  # seconds for the syntax check


def program() -> str | None:
    """Where bash is on this machine."""
    return shutil.which("bash", path=os.environ.get("PATH", os.defpath) + ":/bin:/usr/bin:/usr/local/bin")


def check(code: bytes) -> None:
    """Refuse code that bash would not run as it is meant: NUL, a syntax error, an open quote or heredoc. Blocks."""
    if b"\0" in code:
        raise Refusal(
            "bad_request",
            "the code holds a NUL byte, which bash drops: write it as \\0 in printf, or use write for data",
        )
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
