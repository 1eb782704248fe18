"""`[mesh]` of outrider.toml, read as the daemon reads it."""

from pathlib import Path

import pytest

from daemon import config
from daemon.config import ConfigError
from daemon.meshtable import MeshTable


def load(home: Path, text: str) -> MeshTable:
    file = home / "outrider.toml"
    file.write_text(text)
    return config.load({"HOME": str(home), "OUTRIDER_CONFIG": str(file)}, system_file=home / "none").mesh


def test_without_a_table_the_mesh_is_what_the_documentation_says(tmp_path: Path) -> None:
    mesh = load(tmp_path, "")
    assert (mesh.backend, mesh.port, mesh.listens, mesh.control_port) == ("auto", 51820, ("[::]:4601",), 4602)
    assert (mesh.endpoints, mesh.mtu, mesh.relay, mesh.quiet, mesh.gone) == ((), 1420, True, 180, 180)


def test_every_key_can_be_set(tmp_path: Path) -> None:
    text = """[mesh]
    backend = "wireguard-go"
    port = 51900
    join_listen = ["192.0.2.1:0", "[2001:db8::1]:4700"]
    control_port = 5000
    endpoints = ["hub.example.org", "192.0.2.1:51821", "2001:db8::1", "[2001:db8::1]:9"]
    join_endpoints = ["hub.example.org:443"]
    mtu = 1380
    name = "hub-2"
    relay = false
    quiet = 300
    still = 90.5
    gone = 600
    """
    assert load(tmp_path, text) == MeshTable(
        backend="wireguard-go",
        port=51900,
        join_listen=("192.0.2.1:0", "[2001:db8::1]:4700"),
        control_port=5000,
        endpoints=("hub.example.org", "192.0.2.1:51821", "2001:db8::1", "[2001:db8::1]:9"),
        join_endpoints=("hub.example.org:443",),
        mtu=1380,
        name="hub-2",
        relay=False,
        quiet=300,
        still=90.5,
        gone=600,
    )
    assert load(tmp_path, '[mesh]\njoin_listen = "127.0.0.1:1"').listens == ("127.0.0.1:1",)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("prot = 1", "there is no mesh.prot (did you mean 'port'?)"),
        ('backend = "kernal"', "mesh.backend is 'kernal'; it is one of auto, kernel"),
        ("port = 0", "mesh.port: expected a whole number of at least 1"),
        ('port = "51820"', "mesh.port: expected a whole number, not text"),
        ("control_port = 70000", "mesh.control_port: expected a whole number of at most 65535"),
        ("mtu = 100", "mesh.mtu: expected a whole number of at least 1280"),
        ("join_listen = []", "mesh.join_listen is empty: name one IP:PORT"),
        ('join_listen = "4601"', "mesh.join_listen: '4601' is not IP:PORT; write [::]:4601"),
        ('join_listen = "::1:4601"', "mesh.join_listen: '::1:4601' is not IP:PORT"),
        ('join_listen = "hub:4601"', "mesh.join_listen: 'hub:4601' is not IP:PORT"),
        ('join_listen = "[::]:70000"', "mesh.join_listen: '[::]:70000' is not IP:PORT"),
        ('endpoints = ["http://hub"]', "mesh.endpoints: 'http://hub' is not HOST or HOST:PORT"),
        ('endpoints = [""]', "mesh.endpoints: '' is not HOST or HOST:PORT"),
        ('endpoints = ["hub:0"]', "mesh.endpoints: 'hub:0' is not HOST or HOST:PORT"),
        ('endpoints = ["1.2.3"]', "mesh.endpoints: '1.2.3' is not HOST or HOST:PORT"),
        ('endpoints = ["[hub]:1"]', "mesh.endpoints: '[hub]:1' is not HOST or HOST:PORT"),
        ('endpoints = ["fe80::1%eth0"]', "mesh.endpoints: 'fe80::1%eth0' is not HOST or HOST:PORT"),
        ('join_endpoints = ["a b"]', "mesh.join_endpoints: 'a b' is not HOST or HOST:PORT"),
        (f"endpoints = {['a'] * 9}", "mesh.endpoints has 9 entries: at most 8"),
        ('name = "Hub 1"', "mesh.name: 'Hub 1' is no name"),
        ("quiet = 0", "mesh.quiet: expected a number of at least 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_what_would_be_right(
    tmp_path: Path, line: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"[mesh]\n{line}")
    assert words.lower() in str(caught.value).lower()
