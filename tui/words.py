"""Say of a session in a few words and signs what stands about it: status, context, workers, age."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from daemon.plain import line, tokens
from daemon.protocol import api
from daemon.protocol.records import Status

SIGNS: Final[Mapping[Status, str]] = {
    "stepping": "●",
    "open": "○",
    "interrupted": "◌",
    "closed": "✓",
    "failed": "✗",
    "ended": "■",
    "expired": "■",
    "damaged": "!",
}
COLOURS: Final[Mapping[Status, str]] = {  # names of the theme's colours
    "stepping": "primary",
    "open": "warning",
    "interrupted": "warning",
    "closed": "success",
    "failed": "error",
    "ended": "",
    "expired": "",
    "damaged": "error",
}
WAITING: Final = "waiting"  # in place of the status, of a session that waits for its workers
EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def sign(info: api.Info) -> str:
    """The status as one sign."""
    return SIGNS[info.status]


def status(info: api.Info, waits: bool) -> str:
    """The status in a word, as every screen shows it."""
    return WAITING if waits else info.status


def bar(share: float, width: int) -> str:
    """A bar of `width` cells, filled by `share` of 0 to 1 in eighths of a cell."""
    filled = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(filled, 8)
    return ("█" * whole + (EIGHTHS[rest] if rest else "")).ljust(width, "·")


def share(info: api.Info, limit: int) -> float:
    """How full the context is; 0 where there is no limit."""
    return info.prompt / limit if limit else 0.0


def context(info: api.Info, limit: int) -> str:
    """The context in tokens, against its limit where there is one."""
    if not info.prompt:
        return "-"
    return f"{tokens(info.prompt)}/{tokens(limit)}" if limit else tokens(info.prompt)


def moment(text: str) -> datetime | None:
    """A record's time; None where it is none."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def age(text: str, now: datetime) -> str:
    """How long ago a moment was, in one unit: `3 s`, `2 min`, `5 h`, `4 d`."""
    found = moment(text)
    if found is None:
        return "-"
    seconds = max(0, int((now - found).total_seconds()))
    for unit, name in UNITS:
        if seconds >= unit:
            return f"{seconds // unit} {name}"
    return "now"


def clock(moment: datetime) -> str:
    """A moment as the clock here shows it."""
    return f"{moment.astimezone():%H:%M:%S}"


def title(info: api.Info) -> str:
    """What a session is called: its title, else that it has none yet."""
    return info.title or "(no message yet)"


def called(info: api.Info) -> str:
    """A session's title, behind the agent's name where it is one's."""
    return f"{info.config.agent} · {title(info)}" if info.config.agent else title(info)


def workers(info: api.Info, absent: tuple[str, ...]) -> str:
    """A session's workers by name, `name?` for those that are not here."""
    return " ".join(f"{ref.name}?" if ref.name in absent else ref.name for ref in info.config.workers) or "-"


def standing(info: api.Info, waits: tuple[str, ...]) -> str:
    """What a session is doing, as far as its status tells."""
    if waits:
        return line(f"waits for {', '.join(waits)}")
    match info.status:
        case "stepping":
            return "at work"
        case "open":
            return "waits for a post or retry"
        case "interrupted":
            return "was interrupted, goes on"
        case "closed":
            return "done" if info.prompt else "new"
        case "failed":
            return "failed"
        case "ended" | "expired":
            return info.status
        case "damaged":
            return line(f"its file is damaged: {info.damage}") if info.damage else "its file is damaged"
