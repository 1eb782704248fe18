"""The command line: run one, return its code. No traceback reaches a user, also where a module does not load."""

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

# Nothing of ours or of others is imported up here: what fails to load is told in a sentence too.

FAILED: Final = 1
INTERRUPTED: Final = 130


def invoke(arguments: Sequence[str]) -> int:
    """Run a command line and return its code. The one funnel for errors."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _leave(1)
        return FAILED
    except Exception as error:  # noqa: BLE001 - the user gets a sentence and a code
        message, code = _explained(error)
        _complain(message)
        try:
            sys.stdout.flush()
        except OSError:
            _leave(1)
        return code


def _run(arguments: Sequence[str]) -> int:
    import click

    from daemon.verbs.tree import outrider

    try:
        code = outrider.main(args=list(arguments), prog_name="outrider", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def _explained(error: Exception) -> tuple[str, int]:
    try:
        from daemon.verbs.explain import explain
    except Exception:  # noqa: BLE001 - what failed may be what explains
        what = " ".join(f"{type(error).__name__}: {error}".split())
        what = "".join(char if char.isprintable() else "?" for char in what)
        return f"outrider: it does not load ({what}): the installation is damaged, install it anew", FAILED
    return explain(error)


def _complain(message: str) -> None:
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        _leave(2)


def _leave(fd: int) -> None:
    """What is still buffered for stdout or stderr has nowhere to go, and Python's end must not stumble over it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def main() -> NoReturn:
    """The console script."""
    while (
        fd := os.open(os.devnull, os.O_RDWR)
    ) <= 2:  # one that is closed would be the next file's or socket's
        continue
    os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = (
        stream or open(os.devnull, mode)  # noqa: SIM115 - open to the end
        for stream, mode in ((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w"))
    )
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a locale without these characters still gets the rest
    sys.exit(invoke(sys.argv[1:]))


if __name__ == "__main__":
    main()
