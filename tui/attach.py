"""Find out whether a path can be posted, and complete half-written ones. All of it blocks: call it in a thread."""

import errno
import os
import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from daemon.plain import count, line, safe, size
from daemon.protocol import api
from daemon.protocol.records import TEXT
from tui.desk import Chip

IMAGES: Final = {
    ".png": ("image/png", re.compile(rb"\x89PNG\r\n\x1a\n")),
    ".jpg": ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    ".jpeg": ("image/jpeg", re.compile(rb"\xff\xd8\xff")),
    ".gif": ("image/gif", re.compile(rb"GIF8[79]a")),
    ".webp": ("image/webp", re.compile(rb"RIFF....WEBP", re.DOTALL)),
}
HEAD: Final = 16  # bytes by which a picture is known
LONG_PASTE: Final = 10_000  # characters; more in the composer would make each key slow
MAX_NAMED: Final = (
    256 << 10
)  # bytes of a text file that `@` brings along; a longer one is read by a worker's tools
MOST: Final = 200  # names that a half-written path may be completed to
NAMED: Final = re.compile(r"(?:(?<=\s)|\A)@([^\s@]+)")


class NotPostable(Exception):
    """The file cannot be posted; the message says why and what to do."""


def pasted_path(text: str) -> str:
    """The path that a terminal pastes when a picture is dropped on it, plain; empty for any other text."""
    text = text.strip()
    if not text or "\n" in text or len(text) > 4096:
        return ""
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    elif text[0] in "'\"" or "\\ " in text:
        try:
            words = shlex.split(text)
        except ValueError:
            return ""
        if len(words) != 1:
            return ""
        text = words[0]
    return text if Path(text).suffix.lower() in IMAGES and text.startswith(("/", "~", ".")) else ""


def picture(path: str) -> Chip | None:
    """The picture at `path` as an attachment; None where none is there. Raises NotPostable."""
    try:
        file = Path(path).expanduser()
        length, begin = _begin(file, HEAD)
    except (OSError, ValueError, RuntimeError):
        return None
    if length > api.MAX_POST:
        raise NotPostable(
            f"{line(file.name, 200)} has {size(length)}; a post has at most {size(api.MAX_POST)}"
        )
    for type, pattern in IMAGES.values():
        if pattern.match(begin):
            return Chip(f"{line(file.name, 200)} · {size(length)}", type, path=str(file.absolute()))
    return None


def pasted(text: str) -> Chip:
    """A long text that was pasted, as an attachment."""
    lines = text.count("\n") + 1
    return Chip(f"pasted text · {count(lines, 'line')} · {size(len(text.encode()))}", TEXT, text=text)


def part(chip: Chip) -> api.Part:
    """What an attachment is posted as. Raises NotPostable."""
    if not chip.path:
        return api.Part(chip.type, chip.text.encode())
    try:
        _, data = _begin(Path(chip.path), api.MAX_POST + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise NotPostable(f"{line(chip.path)}: {why}; take it out, or put the file back") from error
    if len(data) > api.MAX_POST:
        raise NotPostable(
            f"{line(chip.path)} has grown; a post has at most {size(api.MAX_POST)}: take it out"
        )
    return api.Part(chip.type, data)


def _begin(file: Path, most: int) -> tuple[int, bytes]:
    """(length, the first `most` bytes) of a regular file; nothing is waited for. Raises OSError, ValueError.

    The length is the file system's word: files of /proc say 0, and have more. Some never end, or wait for what comes.
    """
    _regular(os.stat(file), file)  # to open a device may already do something
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as opened:
        found = _regular(os.fstat(opened.fileno()), file)
        data = opened.read(most)
    if data is None:
        raise OSError(errno.EAGAIN, "it has nothing to read now", str(file))
    return found.st_size, data


def _regular(found: os.stat_result, file: Path) -> os.stat_result:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no file", str(file))
    return found


def parts(text: str, chips: Sequence[Chip]) -> tuple[api.Part, ...]:
    """A post: the text, what is attached, and the files that the text names with `@`. Raises NotPostable."""
    made = [api.Part(TEXT, text.encode("utf-8", "replace"))] if text.strip() else []
    made += [part(chip) for chip in chips]
    named = dict.fromkeys(name.rstrip(".,;:!?)") for name in NAMED.findall(text))
    made += [found for name in named if (found := _named(name)) is not None]
    if len(made) > api.MAX_PARTS:
        raise NotPostable(f"{len(made)} parts are too many for one post: at most {api.MAX_PARTS}")
    if (total := sum(len(each.body) for each in made)) > api.MAX_POST:
        raise NotPostable(f"the post has {size(total)}; at most {size(api.MAX_POST)} are taken at once")
    return tuple(made)


def _named(name: str) -> api.Part | None:
    """The file that `@name` means, where it is a picture or a text that is not too long."""
    try:
        file = Path(name).expanduser()
        if (found := picture(str(file))) is not None:
            return part(found)
        _, data = _begin(file, MAX_NAMED + 1)
        data.decode()
    except (OSError, ValueError, RuntimeError):
        return None
    return None if len(data) > MAX_NAMED or b"\0" in data or not data.strip() else api.Part(TEXT, data)


def completions(begun: str) -> list[str]:
    """What a half-written path can become, folders with a slash at their end; hidden ones only where asked for."""
    folder, _, start = begun.rpartition("/")
    at = Path(folder + "/" if folder or begun.startswith("/") else ".")
    try:
        names = [
            entry.name + ("/" if _is_folder(entry) else "")
            for entry in at.expanduser().iterdir()
            if entry.name.startswith(start) and (start.startswith(".") or not entry.name.startswith("."))
        ]
    except (OSError, ValueError, RuntimeError):
        return []
    head = begun[: len(begun) - len(start)]
    return [
        head + name for name in sorted(names)[:MOST] if not re.search(r"[\s@]", name) and safe(name) == name
    ]


def _is_folder(path: Path) -> bool:
    """Also False where that cannot be seen: it keeps no other name from being completed."""
    try:
        return path.is_dir()
    except OSError:
        return False


def common(words: Sequence[str]) -> str:
    """The beginning that all of `words` share."""
    if not words:
        return ""
    first, last = min(words), max(words)
    for at, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:at]
    return first
