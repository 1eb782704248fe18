"""Replace regular files: never hang on what is not one, never leave half of one. Everything here blocks."""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from daemon.protocol import frames
from daemon.worker import surroundings
from daemon.worker.access import EVERYWHERE, Access
from daemon.worker.refusal import Refusal

_KINDS: Final = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)
# What systems say that cannot have a file without a name.
NO_TMPFILE: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)


def resolve(path: str, cwd: str) -> str:
    """An absolute path: relative ones begin at `cwd`, that one at the operator's home; `~` is a home."""
    for name, value in (("path", path), ("cwd", cwd)):
        if "\0" in value:
            raise Refusal("bad_request", f"`{name}` holds a NUL character, which no path can have")
    if not path:
        raise Refusal("bad_request", "`path` is empty: name a file")
    return os.path.join(surroundings.home(), os.path.expanduser(cwd), os.path.expanduser(path))


def refusal(error: OSError, path: str) -> Refusal:
    """The sentence for what the system said about a path."""
    match error.errno:
        case errno.ENOENT:
            parent = Path(path).parent
            while not parent.exists():
                parent = parent.parent
            near = f" (the folder {parent} is there)" if str(parent) != "/" else ""
            if "\ufffd" in path:
                near += "; a name with bytes that are not UTF-8 shows as \ufffd: use `run`, with ? for each of them"
            return Refusal("not_found", f"there is no {path}{near}")
        case errno.ENOTDIR:
            return Refusal("not_found", f"there is no {path}: a part of the path is a file, not a folder")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return Refusal(
                "denied", f"{path}: {error.strerror}; the worker runs as {surroundings.account().pw_name}"
            )
        case errno.EISDIR:
            return Refusal("is_directory", f"{path} is a folder: name a file in it")
        case errno.ELOOP:
            return Refusal("bad_request", f"{path} is a symbolic link that leads back to itself")
        case errno.ENAMETOOLONG:
            return Refusal(
                "bad_request", f"`path` has a name that is too long for the file system: {path[:200]}…"
            )
        case errno.ENXIO | errno.ENODEV:
            return Refusal("not_regular", f"{path} is not a regular file")
        case errno.EBUSY:
            return Refusal(
                "failed",
                f"{path} is in use as a mount, so it cannot be replaced or removed: `run` can write into it",
            )
        case errno.EAGAIN:
            return Refusal("not_regular", f"{path} has no content to read now: it is not a regular file")
        case _:
            return Refusal("failed", f"{path}: {error.strerror}")


def regular(found: os.stat_result, path: str) -> None:
    """Refuse what is not a regular file, by its name."""
    if stat.S_ISDIR(found.st_mode):
        raise Refusal("is_directory", f"{path} is a folder: name a file in it")
    for test, kind in _KINDS:
        if test(found.st_mode):
            raise Refusal("not_regular", f"{path} is {kind}, not a regular file")


class Writing:
    """A file that is being replaced: pieces go to a temporary one beside it, `commit` puts it in place.

    One that is to be removed has an empty temporary one: the journal takes a write for undone while that is there.
    """

    def __init__(self, frame: frames.Write, access: Access = EVERYWHERE) -> None:
        path = self.asked = resolve(frame.path, frame.cwd)
        self.expect = frame.expect.lower()
        self.remove = frame.remove
        self._like = resolve(frame.like, frame.cwd) if frame.like else ""
        self._lock = threading.Lock()
        self._fd = -1
        self._folder = -1
        self._spare = ""  # the temporary file's name in it
        self._made: list[str] = []  # folders that were made for it, the innermost first
        self.tidy: tuple[
            str, ...
        ] = ()  # folders that go with a file that is removed where they are empty, likewise
        self.temporary = ""
        self.size = 0
        try:
            self.path = os.path.realpath(path)
            access.write(self.path, path)
            _refuse_unnamed(self.path, path)
            if frame.remove:  # a link is what is removed, not what it leads to
                folder, name = os.path.split(path)
                access.write(os.path.join(os.path.realpath(folder), name), path)
            try:
                self._old: os.stat_result | None = os.stat(self.path)
            except FileNotFoundError:
                self._old = None
            if self._old:
                regular(self._old, path)
            elif frame.remove:
                raise Refusal("not_found", f"{path} is not there, so it cannot be removed")
            if path.endswith("/"):
                raise Refusal("is_directory", f"{path} ends in a slash: name a file")
            if frame.remove and os.path.islink(path):
                self.path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            self._open(os.path.dirname(self.path), 0o600 if self._old else frame.mode & 0o777)
            access.opened_to_write(self._fd, self.path, path)
        except FileExistsError as error:
            self.drop()
            raise Refusal("not_found", f"{path}: a part of the path is a file, not a folder") from error
        except OSError as error:
            self.drop()
            raise self._refusal(error) from error
        except Refusal:
            self.drop()
            raise

    def _open(self, folder: str, mode: int) -> None:
        """Make the folder where it is missing, and in it the file that takes the content.

        Where the file system can, it has no name until everything has come: nothing is left of one whose keeper
        is killed meanwhile. The folder stays open, so that what it is asked by is not looked up again.
        """
        missing = folder
        while not os.path.lexists(missing):
            self._made.append(missing)
            missing = os.path.dirname(missing)
        os.makedirs(folder, exist_ok=True)
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._spare = f".outrider-{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CLOEXEC
        try:
            self._fd = os.open(".", flags | os.O_TMPFILE, mode, dir_fd=self._folder)
        except OSError as error:
            if error.errno not in NO_TMPFILE:
                raise
            flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self._fd = os.open(self._spare, flags, mode, dir_fd=self._folder)
            self.temporary = os.path.join(folder, self._spare)

    def _refusal(self, error: OSError) -> Refusal:
        """The sentence for what the system said; a file that is writable where only its folder is not says so."""
        folder = os.path.dirname(self.path)
        if (
            error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
            and os.access(self.path, os.W_OK, effective_ids=True)
            and not os.access(folder, os.W_OK | os.X_OK, effective_ids=True)
        ):
            return Refusal(
                "denied",
                f"{self.asked} cannot be replaced, its folder {folder} takes no new file: {error.strerror}; the worker "
                f"runs as {surroundings.account().pw_name}. `run` can write into the file",
            )
        return refusal(error, self.asked)

    def add(self, data: bytes) -> None:
        try:
            with self._lock:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise self._refusal(error) from error
        self.size += len(data)

    def seal(self) -> None:
        """Everything has come: give it the old one's mode, owner and attributes, and put it on the disk."""
        try:
            with self._lock:
                if self._old:
                    self._keep(self._old, self.path)
                elif self._like:
                    self._keep(self._stat_like(), self._like)
                os.fsync(self._fd)
                if not self.temporary:
                    nameless = f"/proc/self/fd/{self._fd}"
                    os.link(nameless, self._spare, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                    self.temporary = os.path.join(os.path.dirname(self.path), self._spare)
                os.close(self._fd)
                self._fd = -1
        except OSError as error:
            raise self._refusal(error) from error

    def _stat_like(self) -> os.stat_result:
        try:
            return os.stat(self._like)
        except OSError as error:
            raise refusal(error, self._like) from error

    def _keep(self, old: os.stat_result, path: str) -> None:
        mode = stat.S_IMODE(old.st_mode)
        now = os.fstat(self._fd)
        if (old.st_uid, old.st_gid) != (now.st_uid, now.st_gid):
            try:
                os.fchown(self._fd, old.st_uid, old.st_gid)
            except OSError:  # not ours to give away: the content matters more
                mode &= ~stat.S_ISUID  # it would run as somebody else than before
                try:
                    os.fchown(self._fd, -1, old.st_gid)
                except OSError:
                    mode &= ~stat.S_ISGID
        os.fchmod(self._fd, mode)
        with contextlib.suppress(OSError):  # access lists and labels, where the file system has them
            for name in os.listxattr(path):
                with contextlib.suppress(OSError):
                    os.setxattr(self._fd, name, os.getxattr(path, name))

    def check(self) -> None:
        """Refuse when the content that is to be replaced is not the expected one."""
        if not self.expect:
            return
        try:
            found = digest(self.path)
        except FileNotFoundError:
            raise Refusal("changed", f"{self.asked} is not there any more: read it again") from None
        except OSError as error:
            raise refusal(error, self.asked) from error
        if found != self.expect:
            raise Refusal("changed", f"{self.asked} was changed since it was read: read it again")

    def commit(self) -> None:
        """Put the new content in place of the old, or remove that."""
        try:
            name, folder = os.path.basename(self.path), self._folder
            if self.remove:
                os.unlink(name, dir_fd=folder)
                os.unlink(self._spare, dir_fd=folder)
                remove_empty(self.tidy)
            else:
                os.rename(self._spare, name, src_dir_fd=folder, dst_dir_fd=folder)
            self.temporary = ""
            self._made.clear()
        except OSError as error:
            raise self._refusal(error) from error
        with contextlib.suppress(OSError):  # it is in place; not every folder can be read, or synced
            fd = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def drop(self) -> None:
        """Let go of what is not in place: the file that was there stays as it is, folders made for it go."""
        with self._lock:
            with contextlib.suppress(OSError):
                if self.temporary:
                    os.unlink(self._spare, dir_fd=self._folder)
            self.temporary = ""
            for fd in (self._fd, self._folder):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._folder = -1
            remove_empty(self._made)
            self._made.clear()

    @property
    def made(self) -> tuple[str, ...]:
        """The folders that were made for it and would go again with it, the innermost first."""
        return tuple(self._made)


def remove_empty(folders: Iterable[str]) -> None:
    """Remove folders, the innermost first, up to one in which something else stands by now."""
    with contextlib.suppress(OSError):
        for folder in folders:
            os.rmdir(folder)


def _refuse_unnamed(real: str, asked: str) -> None:
    """A path that is not UTF-8 cannot be written down in the journal."""
    try:
        real.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(real).decode("utf-8", "replace")
        raise Refusal(
            "bad_request", f"{asked} leads to {shown}, whose name is not UTF-8: use `run` to write it"
        ) from None


class Appending:
    """Pieces that are put behind a file's content, which has to be the expected one; the interface is Writing's.

    Not for files that matter: a power cut may leave a part of it, which the next one's `expect` shows.
    """

    temporary = ""  # nothing is put in place
    remove = False
    made = ()

    def __init__(self, frame: frames.Write, access: Access = EVERYWHERE) -> None:
        path = self.asked = resolve(frame.path, frame.cwd)
        if not frame.expect or frame.remove or frame.call:
            raise Refusal(
                "bad_request", "`append` goes with `expect`, and with none of `remove`, `session` and `call`"
            )
        self.size = 0
        self._lock = threading.Lock()
        self._fd = -1
        try:
            self.path = os.path.realpath(path)
            access.write(self.path, path)
            regular(os.stat(self.path), path)
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self.path, flags)
            regular(os.fstat(self._fd), path)
            access.opened_to_write(self._fd, self.path, path)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(self._fd, "rb", buffering=0, closefd=False) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
                self._start = file.tell()
            if found != frame.expect.lower():
                raise Refusal("changed", f"{path} is not what is to be appended to")
        except BlockingIOError as error:
            self._close()
            raise Refusal("busy", f"{path} is being appended to already") from error
        except OSError as error:
            self._close()
            raise refusal(error, path) from error
        except Refusal:
            self._close()
            raise

    def add(self, data: bytes) -> None:
        try:
            with self._lock:
                view = memoryview(data)
                while view:
                    wrote = os.pwrite(self._fd, view, self._start + self.size)
                    self.size += wrote
                    view = view[wrote:]
        except OSError as error:
            raise refusal(error, self.asked) from error

    def seal(self) -> None:
        """Everything has come."""

    def check(self) -> None:
        """It was checked as it was opened."""

    def commit(self) -> None:
        """Keep what was added."""
        self._close()

    def drop(self) -> None:
        """Cut off what was added, unless it was kept."""
        with self._lock:
            if self._fd >= 0:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._start)
        self._close()

    def _close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def digest(path: str) -> str:
    """SHA-256 of a file's content, in hex."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
