import asyncio
import ssl
from collections.abc import MutableMapping, MutableSequence
from pathlib import Path
from typing import Any

import pytest

from daemon.api import listening
from daemon.api.keys import Keys
from daemon.api.listening import ListenError
from daemon.client import ApiFailure, Client, Unreachable
from daemon.protocol import api
from daemon.protocol.records import draft
from tests.daemon.api import certificates
from tests.daemon.api.certificates import Files
from tests.daemon.api.conftest import SMALL
from tests.daemon.api.fakes import FakeHarness, serve


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return certificates.make(tmp_path_factory.mktemp("tls"))


async def test_over_tls_everything_goes_with_a_ca_or_a_fingerprint(
    harness: FakeHarness, files: Files, path: Path
) -> None:
    keys = Keys(path.with_name("keys.toml"))
    key = (await keys.add(api.NewKey("a", "operator"))).key
    tls = listening.tls(files.cert, files.key)
    id = harness.session("one")
    async with serve(harness, keys=keys, tcp=["127.0.0.1:0", "[::1]:0"], tls=tls) as served:
        url = f"https://{served.tcp[0]}"
        colons = ":".join(files.fingerprint[at : at + 2] for at in range(0, 64, 2)).upper()
        for trust in [
            {"ca": str(files.ca)},
            {"fingerprint": files.fingerprint},
            {"fingerprint": f"SHA256:{colons}"},
        ]:
            async with Client(url, key, **trust) as client:  # type: ignore[arg-type]
                assert (await client.version()).version == "1"
                n = await client.post(id, [api.Part("image/png", bytes(3_000_000))], "me")
                assert (await client.records(id, n - 1))[0].body == bytes(3_000_000)
        async with Client(url, "ork_wrong", ca=files.ca) as client:
            with pytest.raises(ApiFailure, match="not one of this daemon's"):
                await client.list()
        async with Client(f"https://{served.tcp[1]}", key, ca=files.ca) as client:
            with pytest.raises(Unreachable, match=r"is not trusted \(IP address mismatch"):
                await client.list()
        async with Client(f"https://{served.tcp[1]}", key, fingerprint=files.fingerprint) as client:
            await client.list()


async def test_a_certificate_that_is_not_trusted_is_told_with_what_would_do(
    harness: FakeHarness, files: Files
) -> None:
    tls = listening.tls(files.cert, files.key)
    async with (
        serve(harness, tcp=["127.0.0.1:0"], tls=tls) as served,
        serve(harness, tcp=["127.0.0.1:0"]) as bare,
    ):
        url = f"https://{served.tcp[0]}"
        for client, words in [
            (
                Client(url),
                r"is not trusted \(unable to get local issuer certificate\); name its CA file \(OUTRIDER_CA\) or its",
            ),
            (Client(url, fingerprint="0" * 64), f"is another one: its fingerprint is {files.fingerprint}"),
            (Client(url, ca=files.key), f"the CA file {files.key} cannot be used: "),
            (Client(url, ca="/nowhere.pem"), "the CA file /nowhere.pem cannot be used: No such file"),
            (Client(f"https://{bare.tcp[0]}"), "does not answer with TLS; if that is right, write http://"),
            (Client(url.replace("https", "http")), "was lost in the middle of a request"),
        ]:
            async with client:
                with pytest.raises(Unreachable, match=words):
                    await client.version()


@pytest.mark.parametrize(
    ("where", "trust", "words"),
    [
        ("http://x", {"ca": "a"}, "begins with https://"),
        ("/socket", {"fingerprint": "0" * 64}, "begins with https://"),
        ("https://x", {"ca": "a", "fingerprint": "0" * 64}, "not both"),
        ("https://x", {"fingerprint": "abc"}, "64 hex digits"),
    ],
)
def test_trust_that_cannot_be_is_refused(where: str, trust: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Client(where, **trust)


async def test_without_tls_only_loopback_is_listened_on_unless_it_is_insecure(
    harness: FakeHarness, files: Files
) -> None:
    with pytest.raises(ListenError, match=r"set cert and key in \[tls\] of outrider.toml, or say --insecure"):
        async with serve(harness, tcp=["0.0.0.0:0"]):
            pass
    async with serve(harness, tcp=["0.0.0.0:0"], tls=listening.tls(files.cert, files.key)) as served:
        assert served.tcp[0].startswith("0.0.0.0:")
    async with serve(harness, tcp=["[::]:0"], insecure=True) as served:
        assert served.tcp[0].startswith("[::]:")


def test_files_that_are_no_certificate_and_its_key_are_told(files: Files, tmp_path: Path) -> None:
    other = certificates.make(tmp_path)
    (tmp_path / "words").write_text("words")
    for cert, key, words in [
        (tmp_path / "none", files.key, "tls.cert: .*none: No such file"),
        (files.cert, tmp_path / "none", "tls.key: .*none: No such file"),
        (tmp_path, files.key, "tls.cert: .*: Is a directory"),
        (files.cert, files.locked, "tls.key: .*locked.pem is encrypted"),
        (files.cert, other.key, "are not a PEM certificate .* KEY_VALUES_MISMATCH"),
        (tmp_path / "words", files.key, "are not a PEM certificate"),
    ]:
        with pytest.raises(ListenError, match=words):
            listening.tls(cert, key)


async def test_a_reader_that_stops_reading_over_tls_is_dropped(
    harness: FakeHarness, files: Files, path: Path, logs: MutableSequence[MutableMapping[str, Any]]
) -> None:
    keys = Keys(path.with_name("keys.toml"))
    key = (await keys.add(api.NewKey("a", "viewer"))).key
    id = harness.session()
    harness.logs[id].append(*[draft("text", "x" * 500_000)] * 20)
    tls = listening.tls(files.cert, files.key)
    async with serve(harness, keys=keys, tcp=["127.0.0.1:0"], tls=tls, limits=SMALL) as served:
        host, port = served.tcp[0].split(":")
        trusting = await asyncio.to_thread(client_context, files)
        _, writer = await asyncio.open_connection(host, int(port), ssl=trusting, limit=1000)
        request = (
            f"GET /sessions/{id}/events?deltas=1 HTTP/1.1\r\nHost: d\r\nAuthorization: Bearer {key}\r\n\r\n"
        )
        writer.write(request.encode())
        await harness.gone.wait()
        writer.transport.abort()
    assert [line["why"] for line in logs if line["event"] == "reader of events dropped"] == ["takes nothing"]


def client_context(files: Files) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(files.ca))
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return made
