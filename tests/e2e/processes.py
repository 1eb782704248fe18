"""The processes of an end-to-end test: the mock of a service, and a daemon that can be killed and started again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import aiohttp

from daemon.protocol import records
from daemon.protocol.records import Record
from daemon.worker import cgroup
from tests.running import RELEASE

ROOT = Path(__file__).resolve().parent.parent.parent


class Mock:
    """tests/mock_messages.py in a process of its own; `arguments` are its command line's."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        with (folder / "mock.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests/mock_messages.py"), "--until-eof", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline().split()[1])}"

    def close(self) -> None:
        self._process.communicate(timeout=10)

    async def config(self, **part: Any) -> None:
        """Change the script."""
        await self._call("POST", "config", json=part)

    async def release(self) -> None:
        """Let go what is held back."""
        await self._call("POST", "release")

    async def get(self, what: str) -> list[dict[str, Any]]:
        """The `log`, or what was `bad`."""
        found: list[dict[str, Any]] = json.loads(await self._call("GET", what))
        return found

    async def _call(self, method: str, what: str, **more: Any) -> bytes:
        async with (
            aiohttp.ClientSession() as http,
            http.request(method, f"{self.url}/_ctl/{what}", raise_for_status=True, **more) as answer,
        ):
            return await answer.read()


class Daemon:
    """A daemon on one data folder that can be killed and started again."""

    def __init__(self, folder: Path, mock: Mock) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._before: list[str] = []  # what the daemon's command line begins with
        self._log: IO[bytes] = (folder / "daemon.log").open("ab")
        config = folder / "outrider.toml"
        config.write_text(f'[providers.mock]\nkind = "anthropic"\nurl = "{mock.url}"\nkey = "none"\n')
        config.chmod(0o600)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        own = {
            "HOME": str(folder),
            "OUTRIDER_CONFIG": str(config),
            "PYTHONPATH": str(ROOT),
            "OUTRIDER_RELEASE": RELEASE,
        }  # this tree's daemon
        self._environ = kept | own

    def be(self, tree: Path, release: str = "") -> None:
        """Be the daemon of a tree from the next start on, under this release, or under that tree's own."""
        self._environ |= {"PYTHONPATH": str(tree), "OUTRIDER_RELEASE": release}

    @property
    def socket(self) -> Path:
        return self.data / "api.sock"

    @property
    def pid(self) -> int:
        """Its process id. It must run."""
        assert self._process is not None
        return self._process.pid

    def _command(self, verb: str, *more: str) -> list[str]:
        return [sys.executable, "-P", "-m", "daemon.cli", verb, f"--data={self.data}", *more]

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a verb of the command line against this daemon."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "daemon.cli", *arguments],
            env=self._environ | {"OUTRIDER_DATA": str(self.data)},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=50,
        )

    def bound(self) -> str:
        """Have it started so that files' modes bind it even where root runs the tests; why that cannot be, or empty."""
        if os.geteuid() != 0:
            return ""
        capabilities = "-dac_override,-dac_read_search"
        before = ["setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}"]
        try:
            subprocess.run([*before, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"setpriv cannot take root's capabilities away: {error}"
        self._before = before
        return ""

    def without_cgroups(self) -> str:
        """Have it and its worker started where no cgroup v2 is mounted; why that cannot be, or empty."""
        if cgroup.own() is None:
            return ""
        hides = (
            "while read -r _ _ _ _ at rest; do case $rest in *' - cgroup2 '*) umount -l \"$at\";; esac; done"
        )
        before = ["unshare", "--mount", "sh", "-ec", f'{hides} </proc/self/mountinfo; exec "$@"', "sh"]
        try:
            subprocess.run([*before, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"unshare cannot hide the mount of cgroup v2: {error}"
        self._before = before
        return ""

    async def start(self) -> None:
        """Start it; returns when it is ready."""
        process = await asyncio.to_thread(
            subprocess.Popen,
            [*self._before, *self._command("daemon", "--listen=none", "--json")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environ,
            cwd=self.folder,
        )
        self._process = process
        self.starts += 1
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        assert line, f"start {self.starts} failed: {self.log()[-2000:]}"

    def kill(self) -> None:
        """SIGKILL: no handler, no flush, no goodbye."""
        if (process := self._process) is not None:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            self._process = None

    def down(self) -> None:
        """`outrider down`: it ends the daemon and the worker that outlives it."""
        subprocess.run(
            self._command("down"), env=self._environ, cwd=self.folder, check=True, capture_output=True
        )
        if self._process is not None:
            self._process.communicate(timeout=10)
            self._process = None

    def end(self) -> None:
        """End everything, also what is broken."""
        try:
            self.down()
        finally:
            self.kill()
            self._log.close()

    def log(self) -> str:
        return (self.folder / "daemon.log").read_text(errors="replace")

    def file(self, session: str) -> list[Record]:
        """The records of a session's file, its numbers and check sums checked."""
        decoder = records.decoder()
        decoder.feed((self.data / "sessions" / f"{session}.state").read_bytes())
        found: list[Record] = []
        while (unit := decoder.next()) is not None:
            header, line, body = unit
            records.check(line, body)
            assert header.n == len(found) + 1
            found.append(Record(header, body, line))
        assert decoder.pending == 0
        return found
