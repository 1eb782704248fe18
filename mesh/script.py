"""The join script as a harness serves it, and the shell line that fetches, checks and runs it. Pure but for `read`."""

import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mesh.address import Place
from mesh.listener import SCRIPT_PATH
from mesh.token import PREFIX
from mesh.wheelhouse import Wheel, Wheelhouse

FILE: Final = Path(__file__).with_name("join.sh")  # beside this module in a checkout and in a wheel
_TOKEN: Final = re.compile(rf"{PREFIX}[A-Za-z0-9_-]+")
_PLAIN: Final = re.compile(
    r"[A-Za-z0-9._+!:,/\[\]-]*( [A-Za-z0-9._+!:,/\[\]-]+)*"
)  # nothing that a shell acts on in quotes
_SPECIAL: Final = re.compile(r"[^A-Za-z0-9._+:,/-]")

SILENT: Final = 5  # seconds without a byte after which a place is given up
WHOLE: Final = 15  # … for all of the script, where a program knows no other limit
_CURL: Final = f"--connect-timeout {SILENT} -y {SILENT} -Y 1 -m 60"
_FETCH: Final = (
    f"import sys,urllib.request as u;sys.stdout.buffer.write(u.urlopen(sys.argv[1],None,{SILENT}).read())"
)


class ScriptError(Exception):
    """The join script cannot be made; the message says why."""


def read() -> str:
    """The script as it is installed. Blocks. Raises ScriptError."""
    try:
        return FILE.read_text("utf-8")
    except OSError as error:
        raise ScriptError(f"{FILE}: {error.strerror or error}; install Outrider anew") from error


def filled(
    text: str,
    fingerprint: bytes,
    places: Sequence[Place],
    wheel: Wheel | None,
    wheelhouse: Wheelhouse | None = None,
    why: str = "",
) -> bytes:
    """The script of the harness whose join key has this fingerprint: the same bytes for the same arguments.

    `places`: of its join listener. Without a `wheel` the script only says that there is none, and `why`.
    Raises ScriptError.
    """
    values = {
        "HARNESS": fingerprint.hex()[:8],
        "ENDPOINTS": " ".join(map(str, places)),
        "WHEEL": wheel.name if wheel else "",
        "WHEEL_SHA256": wheel.sha256 if wheel else "",
        "INDEX_SHA256": wheelhouse.sha256 if wheelhouse else "",
        "WHY": "" if wheel else " ".join(_SPECIAL.sub(" ", why).split()),
    }
    for name, value in values.items():
        if not _PLAIN.fullmatch(value):
            raise ScriptError(f"{name} of the join script cannot be {value!r}")
        before, empty, after = text.partition(f"\n{name}=''")
        if not empty:
            raise ScriptError(f"{FILE} has no place for {name}; install Outrider anew")
        text = f"{before}\n{name}='{value}'{after}"
    return text.encode()


def sha256(script: bytes) -> str:
    """What a shell line has of the script: SHA-256 in hex."""
    return hashlib.sha256(script).hexdigest()


def shell_line(places: Sequence[Place], script_sha256: str, token: str) -> str:
    """One line for any shell that fetches the script from the first place that has it, checks and runs it.

    It takes curl, wget and timeout (the -T of some wgets crashes), or python3, the first of these that is there, and
    says of each place that does not answer, after some seconds; sha256sum or shasum. The token goes by a
    pipe and stands in no process's arguments. Options of the script may be added at the end. The line's status is the
    script's, 1 where the script is another or none of those programs is there, 4 where nobody answers. Raises
    ValueError.
    """
    if not places or not _TOKEN.fullmatch(token) or not re.fullmatch("[0-9a-f]{64}", script_sha256):
        raise ValueError("a shell line needs a place, a SHA-256 in hex and a token")
    bases = " ".join(f'"http://{place}"' for place in places)
    program = (
        'f=$(mktemp) || exit 1; trap "rm -f $f" EXIT; trap "exit 130" INT; s=4; '
        'e() { s=$1; shift; echo "$*" >&2; exit $s; }; h() { command -v $1 >/dev/null; }; '
        # curl and wget read one spelling of these only, for a reason that holds for CGI alone
        "p=${http_proxy:-$HTTP_PROXY}; n=${no_proxy:-$NO_PROXY}; "
        f'if h curl; then g() {{ http_proxy=$p no_proxy=$n curl -gfsS {_CURL} "$1"; }}; '
        f'elif h wget && h timeout; then g() {{ http_proxy=$p no_proxy=$n timeout {WHOLE} wget -q -O - "$1"; }}; '
        f'elif h python3; then g() {{ python3 -Ic "{_FETCH}" "$1"; }}; '
        'else e 1 "curl, wget or python3 is needed: install one"; fi; '
        'h sha256sum || h shasum || e 1 "sha256sum is needed: install coreutils"; '
        f"for b in {bases}; do "
        f'g "$b{SCRIPT_PATH}" >"$f" 2>/dev/null || {{ echo "$b does not answer" >&2; continue; }}; '
        'd=$(sha256sum "$f" 2>/dev/null || shasum -a 256 "$f"); '
        f'[ "${{d%% *}}" = {script_sha256} ] || {{ s=1; continue; }}; '
        'sh "$f" --from "$b" "$@" -; exit; '
        "done; "
        '[ $s = 4 ] || e 1 "the harness has another join.sh by now: make a new token"; '
        'e 4 "the harness is not reached: is it up, and its join port open to this machine?"'
    )
    return f"echo {token} | sh -c {shlex.quote(program)} join.sh"
