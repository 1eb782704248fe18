"""Make a post of texts and files, and refuse what cannot be posted before anything is sent."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from daemon.client import Client
from daemon.plain import line
from daemon.protocol import api
from daemon.protocol.records import TEXT
from daemon.provider.images import BadImage, inspect
from daemon.verbs.reach import USAGE, VerbError, note

STDIN: Final = "-"
MIB: Final = 1 << 20
TEXTS: Final = {".md": "text/markdown", ".csv": "text/csv", ".html": "text/html", ".htm": "text/html"}
IMAGES: Final = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_IMAGE: Final = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP", re.DOTALL)
_CONVERT: Final = "convert it to PNG or JPEG"
_NAME_IT: Final = "name its path in the text, and let the session read it with its worker's tools"
# What else a file may be, by its beginning: (pattern, what it is, what to do).
_OTHERS: Final = tuple(
    (re.compile(pattern, re.DOTALL), what, do)
    for pattern, what, do in (
        (rb"%PDF-", "a PDF", _NAME_IT),
        (rb"PK\x03\x04", "a ZIP archive or an office document", _NAME_IT),
        (rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf", "a compressed file", _NAME_IT),
        (rb"\x7fELF|MZ", "a program", _NAME_IT),
        (rb"SQLite format 3\0", "a database", _NAME_IT),
        (rb"....ftyp(?:hei|mif|avi)", "a HEIC or AVIF picture", _CONVERT),
        (rb"BM.{4}\0\0\0\0", "a BMP picture", _CONVERT),
        (rb"II\*\0|MM\0\*", "a TIFF picture", _CONVERT),
        (rb"....ftyp|\x1aE\xdf\xa3", "a video or a sound", _NAME_IT),
        (rb"RIFF....WAVE|ID3|OggS|fLaC", "a sound", _NAME_IT),
        (rb"\xff\xfe|\xfe\xff", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    )
)


def parts(text: str | None, files: Sequence[str]) -> list[api.Part]:
    """A post: `text` (`-` is stdin) where there is one, then each file. Raises VerbError."""
    if text is None and not files:
        raise VerbError("there is nothing to post: give a text (`-` for stdin), or --file PATH", USAGE)
    if [text, *files].count(STDIN) > 1:
        raise VerbError("stdin can be read once: one `-`, please", USAGE)
    made = [] if text is None else [api.Part(TEXT, _text(text))]
    made += [_file(name) for name in files]
    if len(made) > api.MAX_PARTS:
        raise VerbError(f"{len(made)} parts are too many for one post: at most {api.MAX_PARTS}", USAGE)
    if (size := sum(len(part.body) for part in made)) > api.MAX_POST:
        raise VerbError(f"the post has {_mib(size)}; {_LIMIT}", USAGE)
    return made


def check_key(key: str | None) -> None:
    """Raises VerbError unless `key` can be an idempotency key, or is none."""
    if key is not None and not (
        key.isascii() and key.isprintable() and key.strip() and len(key) <= api.MAX_NAME
    ):
        raise VerbError(f"--key: 1 to {api.MAX_NAME} printable ASCII characters", USAGE)


async def warn_of_pictures(client: Client, id: str, parts: Sequence[api.Part]) -> None:
    """Say so where a picture is posted to a session whose model takes none."""
    if not any(part.type.startswith("image/") for part in parts):
        return
    config = (await client.info(id)).config
    if config.input and not any(type.startswith("image/") for type in config.input):
        note(f"{line(config.model)} takes no pictures: it is told that one is there, and cannot see it")


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


_LIMIT: Final = f"at most {api.MAX_POST // MIB} MiB are taken in one post; for a file on a worker {_NAME_IT}"


def _text(given: str) -> bytes:
    """The words of a post. Raises VerbError."""
    data = _stdin("the message") if given == STDIN else given.encode("utf-8", "replace")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise VerbError(
            f"the message is not UTF-8 text: byte {error.start} is not valid; --file - takes a picture", USAGE
        ) from error
    if not text.strip():
        raise VerbError("the message is empty", USAGE)
    return data


def _file(name: str) -> api.Part:
    """A file's bytes under the type that they are of. Raises VerbError."""
    where = f"--file {line(name)}"
    if name == STDIN:
        data = _stdin(where)
    else:
        try:
            with Path(name).expanduser().open("rb") as file:
                data = file.read(api.MAX_POST + 1)
                more = len(data) > api.MAX_POST
                size = max(len(data), file.seek(0, 2)) if more and file.seekable() else len(data)
        except OSError as error:
            raise VerbError(f"{where}: {error.strerror}", USAGE) from error
        except ValueError as error:
            raise VerbError(f"{where}: {error}", USAGE) from error
        if more:
            raise VerbError(f"{where} has {_mib(size)}; {_LIMIT}", USAGE)
    return api.Part(kind(where, name, data), data)


def _stdin(where: str) -> bytes:
    if sys.stdin is None:
        raise VerbError(f"{where}: stdin is closed", USAGE)
    data = sys.stdin.buffer.read(api.MAX_POST + 1)
    if len(data) > api.MAX_POST:
        raise VerbError(f"{where}: stdin has more than {_mib(api.MAX_POST)}; {_LIMIT}", USAGE)
    return data


def kind(where: str, name: str, data: bytes) -> str:
    """The media type of a file: a picture's by its bytes, a text's by its name. Raises VerbError for any other."""
    suffix = Path(name).suffix.lower()
    if not data.strip():
        raise VerbError(f"{where} is empty", USAGE)
    if _IMAGE.match(data):
        try:
            return inspect(data).type
        except BadImage as error:
            raise VerbError(f"{where} is a picture that does not read: {error}", USAGE) from error
    if suffix in IMAGES:
        raise VerbError(f"{where} is named as a picture, and its bytes are none: {_what(data)}", USAGE)
    for pattern, what, do in _OTHERS:
        if pattern.match(data):
            raise VerbError(
                f"{where} is {what}; texts and PNG, JPEG, GIF and WebP pictures can be posted: {do}", USAGE
            )
    if (wrong := _not_text(data)) is not None:
        raise VerbError(
            f"{where} is neither a picture (PNG, JPEG, GIF, WebP) nor UTF-8 text: byte {wrong} is not; {_NAME_IT}",
            USAGE,
        )
    return f"{TEXTS.get(suffix, 'text/plain')}; charset=utf-8"


def _what(data: bytes) -> str:
    """What bytes without a picture in them are, in a word."""
    for pattern, what, _ in _OTHERS:
        if pattern.match(data):
            return what
    return "something unknown" if _not_text(data) is not None else "text"


def _not_text(data: bytes) -> int | None:
    """Where `data` stops being UTF-8 text, None where it is."""
    if (nul := data.find(0)) >= 0:
        return nul
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None
