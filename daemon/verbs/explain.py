"""Say in one sentence, and one exit code, what an error means to whoever typed the verb."""

import os
import shutil
import sys
import traceback

from daemon.client import ApiFailure
from daemon.config import ConfigError
from daemon.plain import line, safe
from daemon.release import ReleaseError
from daemon.verbs.paint import is_terminal, wrap
from daemon.verbs.reach import COMPLAINT, FAILED, REFUSED, USAGE, VerbError


def explain(error: BaseException) -> tuple[str, int]:
    """(what to print, exit code). With OUTRIDER_DEBUG in the environment the traceback goes along."""
    message, code = _explain(error)
    message = f"{COMPLAINT}{message}"
    if is_terminal(sys.stderr):
        message = "\n".join(wrap(message, shutil.get_terminal_size().columns - 1, words=True))
    if os.environ.get("OUTRIDER_DEBUG"):
        message += "\n" + safe("".join(traceback.format_exception(error)))
    return message, code


def _explain(error: BaseException) -> tuple[str, int]:
    match error:
        case VerbError():
            return safe(str(error)), error.code
        case ConfigError() | ReleaseError():
            return safe(str(error)), USAGE
        case ApiFailure(status=401):
            return f"{line(error.message, 2000)}; here OUTRIDER_KEY holds it", REFUSED
        case ApiFailure():
            return line(error.message, 2000), REFUSED
        case ImportError():
            what = line(str(error), 500)
            return (
                f"a part of it does not load ({what}): the installation is damaged, install it anew",
                FAILED,
            )
        case UnicodeEncodeError():
            return "an argument or the folder's name is not UTF-8 text, which the daemon takes alone", USAGE
        case OSError() if error.strerror:
            return safe(f"{error.filename}: {error.strerror}" if error.filename else error.strerror), FAILED
        case _:
            what = line(f"{type(error).__name__}: {error}", 500)
            return f"this is a fault of outrider itself ({what}); OUTRIDER_DEBUG=1 shows where", FAILED
