"""What a person has begun and not sent, per session, over restarts: drafts, history, unsent posts, what was seen."""

import hashlib
import os
import shutil
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from daemon.protocol import api
from tui import writers
from tui.choice import Choice

HISTORY: Final = 100  # posts of a session that `up` goes back through
KEPT: Final = 500  # sessions whose drafts and history are kept, those changed last
NEW: Final = ".new"  # ends the name of a file that is being written
LEFT: Final = 3600.0  # seconds after which nobody writes it any more
PATIENCE: Final = 2.0  # seconds that a save waits for another one
PREFS: Final = "prefs.json"
SEEN: Final = 2000  # sessions of which is kept when they were looked at

T = TypeVar("T")


class Chip(Struct, frozen=True):
    """Something attached to a draft: a file by its path, or a text that was pasted, by its words."""

    name: str
    type: str
    path: str = ""
    text: str = ""


class Draft(Struct, frozen=True):
    """What stands in a session's composer, and what was posted from it before, oldest first."""

    text: str = ""
    chips: tuple[Chip, ...] = ()
    history: tuple[str, ...] = ()


class Unsent(Struct, frozen=True):
    """A post that is not acknowledged. `key`: its idempotency key, the same for every try; `text`: as typed."""

    key: str
    session: str
    text: str
    parts: tuple[api.Part, ...]
    chips: tuple[Chip, ...] = ()
    order: float = 0.0


class Prefs(Struct, frozen=True):
    """What is remembered of one daemon. `seen`: when each session was looked at; `began`: the first look at any.

    `choice`: how the last new session was made. `quiet`: nothing is told of sessions that are not on the screen;
    `bell`: with a sound, where it is.
    """

    began: str = ""
    seen: dict[str, str] = {}
    theme: str = ""
    choice: Choice = Choice()
    quiet: bool = False
    bell: bool = False


class Desk:
    """Drafts, unsent posts and preferences for one daemon, in memory. `save` writes what changed, from any thread.

    Saving blocks, and so does making one. Of several processes each writes in a folder of its own, and takes in what
    those left that have ended: none writes over what another one keeps.
    """

    def __init__(self, folder: Path, where: str) -> None:
        self._home = folder / hashlib.sha256(where.encode()).hexdigest()[:16]
        self.folder, lock = writers.place(self._home)
        if lock != writers.NONE:
            weakref.finalize(self, os.close, lock)
        self._drafts: dict[str, Draft] = {}
        self._unsent: dict[str, Unsent] = {}
        self.prefs = Prefs()
        self._changed: set[Path] = set()
        self._guard = threading.Lock()  # of all above; never held for long
        self._writing = threading.Lock()  # what is written last is to be what is newest
        self.complaint = ""  # why something could not be kept
        self._load()
        for other, lock in writers.left(self._home, self.folder):
            self._take_in(other)
            os.close(lock)

    # ---- drafts

    def draft(self, session: str) -> Draft:
        return self._drafts.get(session, Draft())

    def write(self, session: str, text: str, chips: tuple[Chip, ...] = ()) -> None:
        """Keep what stands in a session's composer."""
        now = self.draft(session)
        if (now.text, now.chips) != (text, chips):
            self._keep(session, msgspec.structs.replace(now, text=text, chips=chips))

    def _keep(self, session: str, draft: Draft) -> None:
        with self._guard:
            self._drafts.pop(session, None)  # those that changed last stand last
            self._drafts[session] = draft
            self._changed.add(self._draft_path(session))

    # ---- posts

    def post(
        self, session: str, text: str, parts: tuple[api.Part, ...], chips: tuple[Chip, ...], order: float
    ) -> Unsent:
        """Move a draft to the posts on their way: it is in the history, and no longer in the composer."""
        made = Unsent(uuid.uuid4().hex, session, text, parts, chips, order)
        with self._guard:
            self._unsent[made.key] = made
            self._changed.add(self._unsent_path(made.key))
        history = self.draft(session).history
        if text.strip() and (not history or history[-1] != text):
            history = (*history, text)[-HISTORY:]
        self._keep(session, Draft(history=history))
        return made

    def sent(self, key: str) -> None:
        """A post has arrived, or was given back."""
        with self._guard:
            if self._unsent.pop(key, None) is not None:
                self._changed.add(self._unsent_path(key))

    def unsent(self, session: str = "") -> list[Unsent]:
        """Posts that have not arrived, in the order in which they were made."""
        found = [post for post in self._unsent.values() if not session or post.session == session]
        return sorted(found, key=lambda post: post.order)

    # ---- preferences

    def prefer(self, prefs: Prefs) -> None:
        if prefs != self.prefs:
            with self._guard:
                self.prefs = prefs
                self._changed.add(self._prefs_path)

    # ---- files

    @property
    def dirty(self) -> bool:
        """Whether there is something to save."""
        return bool(self._changed)

    def save(self) -> None:
        """Write what changed, each file in one step and for its owner alone. What fails is in `complaint`.

        It waits for another thread that saves, but not for ever: that one's disk may be gone.
        """
        alone = self._writing.acquire(timeout=PATIENCE)
        try:
            with self._guard:
                changed, self._changed = self._changed, set()
            complaint = ""
            for path in changed:
                try:
                    self._save(path)
                except OSError as error:
                    with self._guard:
                        self._changed.add(path)
                    complaint = f"drafts cannot be kept in {self.folder}: {error.strerror}"
            self.complaint = complaint
        finally:
            if alone:
                self._writing.release()

    def _value(self, path: Path) -> Struct | None:
        """What is to stand in a file; None where there is to be none."""
        with self._guard:
            if path == self._prefs_path:
                return self.prefs
            if path.parent.name == "drafts":
                draft = self._drafts.get(path.stem)
                return draft if draft != Draft() else None
            return self._unsent.get(path.stem)

    def _save(self, path: Path) -> None:
        value = self._value(path)
        if value is None:
            path.unlink(missing_ok=True)
            return
        data = msgspec.json.encode(value)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = path.with_suffix(f".{uuid.uuid4().hex}{NEW}")
        fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(data)
            made.replace(path)
        except OSError:
            made.unlink(missing_ok=True)
            raise

    @property
    def _prefs_path(self) -> Path:
        return self.folder / PREFS

    def _draft_path(self, session: str) -> Path:
        return self.folder / "drafts" / f"{session}.json"

    def _unsent_path(self, key: str) -> Path:
        return self.folder / "unsent" / f"{key}.json"

    def _load(self) -> None:
        """What was kept; a file that does not read is passed over, and what a killed writer left is taken away.

        Where another process writes, its drafts are what this one begins with; its posts are its own to send.
        """
        home, own = self._home, self._home == self.folder
        self.prefs = _read(home / PREFS, Prefs) or Prefs()
        drafts = sorted(home.glob("drafts/*.json"), key=_changed_at)
        for path in drafts[-KEPT:]:
            if (draft := _read(path, Draft)) is not None:
                self._drafts[path.stem] = draft
        if not own:
            return
        self._unsent = {post.key: post for post in _posts(home)}
        with suppress(OSError):  # a folder that cannot be written is told when something is to be kept
            for path in (*home.glob(f"*{NEW}"), *home.glob(f"*/*{NEW}")):
                if time.time() - path.stat().st_mtime > LEFT:
                    path.unlink(missing_ok=True)
            for path in drafts[:-KEPT]:
                path.unlink(missing_ok=True)

    def _take_in(self, folder: Path) -> None:
        """What another process kept, which has ended; its folder goes when all of it is written here."""
        for path in sorted(folder.glob("drafts/*.json"), key=_changed_at):
            if (theirs := _read(path, Draft)) is not None:
                self._keep(path.stem, both(self.draft(path.stem), theirs))
        for post in _posts(folder):
            self._unsent[post.key] = post
            self._changed.add(self._unsent_path(post.key))
        if (prefs := _read(folder / PREFS, Prefs)) is not None:
            seen = dict(self.prefs.seen)
            for id, moment in prefs.seen.items():
                seen[id] = max(seen.get(id, ""), moment)
            newer = prefs if _changed_at(folder / PREFS) > _changed_at(self._prefs_path) else self.prefs
            self.prefer(msgspec.structs.replace(newer, seen=seen))
        self.save()
        if not self.complaint:
            shutil.rmtree(folder, True)


def both(ours: Draft, theirs: Draft) -> Draft:
    """Two drafts of one session as one: what stands in both once, and nothing that was posted from the other."""
    text, chips = ours.text, ours.chips
    if text in theirs.history and text not in ours.history:
        text, chips = "", ()
    if text in theirs.text:
        text = theirs.text
    elif theirs.text not in text:
        text = f"{text}\n{theirs.text}"
    history = (*ours.history, *(post for post in theirs.history if post not in ours.history))
    return Draft(text, (*chips, *(chip for chip in theirs.chips if chip not in chips)), history[-HISTORY:])


def _posts(folder: Path) -> Iterator[Unsent]:
    """The posts that are kept in a folder. What names no session is not ours: its draft would be a file anywhere."""
    for path in folder.glob("unsent/*.json"):
        post = _read(path, Unsent)
        if post is not None and post.key == path.stem and post.session.isalnum():
            yield post


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        if not path.is_file():  # to open a pipe would wait for its writer
            return None
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
