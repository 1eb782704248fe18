"""An sshd on loopback in a folder of its own, for this user alone, and an ssh that knows it."""

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.needed import missing


class Sshd:
    """`url` leads there; `path` is a PATH whose ssh signs in without a question."""

    def __init__(self, port: int, path: str) -> None:
        self.url = f"ssh://{pwd.getpwuid(os.geteuid()).pw_name}@127.0.0.1:{port}"
        self.path = path


@contextmanager
def sshd(folder: Path, **environ: str) -> Iterator[Sshd]:
    """Sign-ins there have `environ`. Skips where the programs are missing."""
    server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    client = shutil.which("ssh")
    if not server or not client:
        missing("sshd or ssh is missing: install openssh-server and openssh-client")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where root's sshd separates its privileges
    for name in ("host", "key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
            check=True,
            stdin=subprocess.DEVNULL,
        )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    words = " ".join(f'{name}="{value}"' for name, value in environ.items())
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/key.pub\nPidFile none\n"
        "UsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n"
        + (f"SetEnv {words}\n" if words else "")
    )
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/key\nIdentitiesOnly yes\nUserKnownHostsFile /dev/null\nStrictHostKeyChecking no\n"
        "LogLevel ERROR\n"
    )
    (folder / "bin").mkdir()
    wrapper = folder / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {client} -F {folder}/ssh_config "$@"\n')
    wrapper.chmod(0o755)
    made = Sshd(port, f"{folder}/bin:{os.environ['PATH']}")
    with subprocess.Popen(
        [server, "-D", "-e", "-f", str(folder / "sshd_config")],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            said = ""
            while "Server listening" not in said:
                line = process.stderr.readline()
                assert line, f"sshd did not start: {said}"
                said += line
            yield made
        finally:
            process.kill()
