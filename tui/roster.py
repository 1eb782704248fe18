"""The sessions and workers as the daemon's events tell them: ordered, filtered, and which of them want a person."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

from daemon.protocol import api
from daemon.protocol.records import Status
from tui import words

Sort = Literal["updated", "attention", "title", "context", "created"]
Attention = Literal["", "failed", "waiting", "closed"]
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)
URGENCY: Final[Mapping[Attention, int]] = {"failed": 0, "waiting": 1, "closed": 2, "": 3}
OVER: Final[frozenset[Status]] = frozenset({"ended", "expired", "damaged"})
RETRIED: Final[frozenset[Status]] = frozenset({"failed", "open", "interrupted"})  # a retry lets it go on
WORDS: Final = frozenset(get_args(Status)) | {words.WAITING}  # of a filter, that mean a status and not a text
BEGUN: Final = 3  # letters from which a word is also the beginning of a status: it is found while it is typed


class Roster:
    """What is known of the daemon's sessions. `seen` says up to which moment a person has looked at each.

    `began`: the moment from which on a session that closed counts as not seen.
    """

    def __init__(self, seen: Mapping[str, str] | None = None, began: str = "") -> None:
        self.infos: dict[str, api.Info] = {}
        self.gone: dict[str, api.Info] = {}  # that the daemon has no longer, as they were
        self._named: set[str] = set()  # since the last state
        self.workers: dict[str, api.WorkerInfo] = {}
        self.loaded = False
        self.seen: dict[str, str] = dict(seen or {})
        self.began = began

    def state(self, state: api.State) -> set[str]:
        """Take a first or new state in; returns the ids of what changed."""
        self.loaded = True
        self.set_workers(state.workers)
        self._named.clear()
        for info in state.sessions:  # also one that has fewer records by now: its file was put back
            if (known := self.infos.get(info.id)) is not None and info.n < known.n:
                del self.infos[info.id]
        return {info.id for info in state.sessions if self.take(info)}

    def take(self, info: api.Info) -> bool:
        """Take one session in; whether it is new or another than before. An older one than is known is passed over."""
        self._named.add(info.id)
        known = self.infos.get(info.id)
        if known == info or (known is not None and info.n < known.n):
            return False
        self.infos[info.id] = info
        self.gone.pop(info.id, None)
        return True

    def forget(self) -> set[str]:
        """Let go of the sessions that nothing has named since the last state, when all behind it was read too.

        Files of sessions may be deleted while the daemon is down. Returns their ids.
        """
        gone = self.infos.keys() - self._named
        self.gone |= {id: self.infos.pop(id) for id in gone}
        return gone

    def info(self, id: str) -> api.Info | None:
        """A session as it is known, or as it was when it was there last."""
        return self.infos.get(id) or self.gone.get(id)

    def set_workers(self, workers: Iterable[api.WorkerInfo]) -> None:
        self.workers = {worker.name: worker for worker in workers}

    def look(self, id: str) -> bool:
        """A person has seen the session as it is now; whether that is news."""
        info = self.infos.get(id)
        if info is None or self.seen.get(id) == info.updated:
            return False
        self.seen[id] = info.updated
        return True

    def absent(self, info: api.Info) -> tuple[str, ...]:
        """The session's workers that are not here."""
        return tuple(ref.name for ref in info.config.workers if not self._here(ref.name))

    def _here(self, name: str) -> bool:
        worker = self.workers.get(name)
        return worker is not None and worker.state == "connected"

    def waits(self, info: api.Info) -> tuple[str, ...]:
        """The workers that a session at work waits for: all of its own, where none of them is here."""
        absent = self.absent(info)
        at_work = info.status == "stepping" and bool(absent) and len(absent) == len(info.config.workers)
        return absent if at_work else ()

    def attention(self, info: api.Info) -> Attention:
        """Why a session wants a person: it failed or closed since it was last seen, or it waits for a worker."""
        if self.waits(info):
            return "waiting"
        if info.status in ("failed", "closed"):
            seen = max(self.seen.get(info.id, ""), self.began)
            return info.status if info.updated > seen and info.prompt else self._failed(info, seen)
        return ""

    @staticmethod
    def _failed(info: api.Info, seen: str) -> Attention:
        """A session that failed before its first answer has no prompt, and one that was only made neither."""
        return "failed" if info.status == "failed" and info.updated > seen else ""

    def rows(self, sort: Sort = "updated", filter: str = "") -> list[api.Info]:
        """The sessions that pass `filter`, in order; what is newest first where nothing else says."""
        found = sorted(self.infos.values(), key=lambda info: (info.updated, info.id), reverse=True)
        wanted = filter.lower().split()
        if wanted:
            found = [info for info in found if self._passes(info, wanted)]
        match sort:
            case "updated":
                pass
            case "attention":
                found.sort(key=lambda info: (URGENCY[self.attention(info)], info.status != "stepping"))
            case "title":
                found.sort(key=lambda info: (not info.title, info.title.lower()))
            case "context":
                found.sort(key=lambda info: -info.prompt)
            case "created":
                found.sort(key=lambda info: info.created, reverse=True)
        return found

    def _passes(self, info: api.Info, wanted: Sequence[str]) -> bool:
        """Every word is the status, stands in one of its names or its title, or begins its id; `!` wants a person.

        A session that waits for its workers is found as such, and by the status that it has all the same.
        """
        shown = {info.status, words.status(info, bool(self.waits(info)))}
        statuses = {word for word in wanted if word in WORDS}
        if statuses and not statuses & shown:
            return False
        text = " ".join(
            (
                info.config.agent,
                info.title,
                info.config.model,
                *(ref.name for ref in info.config.workers),
            )
        ).lower()
        return all(
            word in statuses
            or word in text
            or info.id.startswith(word)
            or (word == "!" and self.attention(info) != "")
            or (len(word) >= BEGUN and any(status.startswith(word) for status in shown))
            for word in wanted
        )

    def urgent(self) -> list[api.Info]:
        """The sessions that want a person, most urgent first, newest first among equals."""
        return [info for info in self.rows("attention") if self.attention(info)]

    def next_urgent(self, current: str = "") -> str:
        """The id of the next session that wants a person, after `current`; empty where none does."""
        ids = [info.id for info in self.urgent()]
        if not ids:
            return ""
        return ids[(ids.index(current) + 1) % len(ids)] if current in ids else ids[0]

    def beside(self, current: str, by: int) -> str:
        """The id of the session `by` places below `current` in the list's order, round and round; empty for none."""
        ids = [info.id for info in self.rows()]
        if not ids:
            return ""
        return ids[(ids.index(current) + by) % len(ids)] if current in ids else ids[0]
