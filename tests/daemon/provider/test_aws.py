"""Signing, and credentials from botocore's chain: never in the loop, whatever they come from."""

import asyncio
import builtins
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from daemon.provider import aws
from daemon.provider.aws import Chain, Keys, Signer
from daemon.provider.base import ProviderError, Request
from tests.fakes import FakeClock

KEYS = Keys("AKIDEXAMPLE", "c2VjcmV0", "token")
REQUEST = Request(
    "http://127.0.0.1:1/model/us.anthropic.claude-x-v1:0/converse-stream",
    {"content-type": "application/json", "accept": "x", "x-amz-bedrock-trace": "ENABLED"},
    b'{"messages":[]}',
)


@pytest.fixture(autouse=True)
def nobodys_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without credentials, and no machine that gives any; the chain reads the process's environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


def expected(request: Request, keys: Keys, region: str) -> str:
    """The signature that AWS would work out for a request as it arrived."""
    from tests.aws_check import signature

    return signature("POST", request.url, request.headers, request.body, keys.access, keys.secret, region)


async def test_a_request_is_signed_as_the_server_checks_it() -> None:
    for body in (REQUEST.body, b"x" * (aws.LARGE + 1)):
        for url in (REQUEST.url, "http://127.0.0.1:1/model/arn:aws:bedrock:x%2Fy%20z/converse-stream"):
            sent = await Signer("eu-west-1", find=lambda: KEYS).sign(Request(url, REQUEST.headers, body))
            assert sent.body == body
            assert sent.headers["accept"] == "x"
            assert sent.headers["x-amz-security-token"] == "token"
            said = sent.headers["authorization"]
            assert "/eu-west-1/bedrock/aws4_request" in said
            assert (
                "SignedHeaders=content-type;host;x-amz-bedrock-trace;x-amz-date;x-amz-security-token" in said
            )
            assert said.endswith(f"Signature={expected(sent, KEYS, 'eu-west-1')}")


async def test_whoever_waits_shares_one_search_in_a_thread_of_its_own() -> None:
    release, threads = threading.Event(), list[threading.Thread]()

    def find() -> Keys:
        threads.append(threading.current_thread())
        release.wait()
        return KEYS

    signer = Signer("r", find=find)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(signer.sign(REQUEST), name=f"sign {n}") for n in range(5)]
        await asyncio.sleep(0)
        release.set()
    assert len({task.result().headers["authorization"].partition("Signature")[0] for task in tasks}) == 1
    (thread,) = threads
    assert thread.daemon
    assert thread is not threading.current_thread()
    await signer.sign(REQUEST)
    assert len(threads) == 2, "the next one asks anew"


async def test_one_who_gives_up_does_not_stop_the_others() -> None:
    release = threading.Event()

    def find() -> Keys:
        release.wait()
        return KEYS

    signer = Signer("r", find=find)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(signer.sign(REQUEST), name="first")
        second = group.create_task(signer.sign(REQUEST), name="second")
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        release.set()
    assert second.result().headers["authorization"]


async def test_credentials_that_do_not_come_are_said_to_and_asked_for_again() -> None:
    release = threading.Event()

    def find() -> Keys:
        release.wait()
        return KEYS

    signer = Signer("r", find=find, limit=0.05)
    with pytest.raises(ProviderError, match="no AWS credentials within") as caught:
        await signer.sign(REQUEST)
    assert (caught.value.code, caught.value.retryable) == ("credentials", True)
    release.set()
    patient = Signer("r", find=lambda: KEYS)
    assert (await patient.sign(REQUEST)).headers["authorization"]


async def test_what_the_search_says_is_what_the_request_says() -> None:
    def find() -> Keys:
        raise ProviderError("locked", code="credentials")

    with pytest.raises(ProviderError, match="locked"):
        await Signer("r", find=find).sign(REQUEST)


def test_credentials_after_the_loop_is_closed_are_nobodys() -> None:
    release, ended = threading.Event(), threading.Event()

    def find() -> Keys:
        release.wait()
        ended.set()
        return KEYS

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await Signer("r", find=find).sign(REQUEST)

    asyncio.run(give_up())
    release.set()
    assert ended.wait(30)


def test_a_program_that_never_ends_does_not_keep_the_process_from_ending() -> None:
    code = (
        "import asyncio, threading; from daemon.provider.aws import Signer; "
        "from daemon.provider.base import ProviderError, Request\n"
        "try: asyncio.run(Signer('r', find=threading.Event().wait, limit=0.01).sign(Request('http://h/', {}, b'')))\n"
        "except ProviderError as error: print(error.code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout.strip() == "credentials"


# The chain.


async def chained(chain: Chain | None = None) -> Keys:
    """What the chain finds, asked as a signer asks it: blockbuster watches that the loop is not blocked."""
    found: list[Keys] = []
    real = chain or Chain()

    def find() -> Keys:
        found.append(real())
        return found[0]

    await Signer("r", find=find).sign(REQUEST)
    return found[0]


async def test_credentials_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "B")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "C")
    assert await chained() == Keys("A", "B", "C")


async def test_credentials_in_a_file_are_looked_up_again_after_a_while(nobodys_aws: Path) -> None:
    file, clock = nobodys_aws / "credentials", FakeClock()
    chain = Chain(clock.time)

    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n")

    write("A")
    assert (await chained(chain)).access == "A"
    write("B")
    assert (await chained(chain)).access == "A"
    clock.advance(aws.RECENT + 1)
    assert (await chained(chain)).access == "B"


def program(folder: Path, lines: Sequence[str]) -> Path:
    """A program that a profile names for its credentials."""
    file = folder / "helper"
    file.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    (folder / "config").write_text(f"[profile mine]\nregion = eu-north-1\ncredential_process = {file}\n")
    return file


async def test_credentials_of_a_program_are_renewed_by_it(
    nobodys_aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    said = '{"Version":1,"AccessKeyId":"A%s","SecretAccessKey":"B","SessionToken":"C","Expiration":"%s"}'
    count = nobodys_aws / "count"
    program(
        nobodys_aws,
        [
            f"echo x >> {count}",
            f"number=$(wc -l < {count} | tr -d ' ')",
            f"printf '{said}' \"$number\" \"$(date -u -d '+1 minute' +%Y-%m-%dT%H:%M:%SZ)\"",
        ],
    )
    chain = Chain()
    first = await chained(chain)
    second = await chained(chain)
    assert (first.token, second.token) == ("C", "C")
    assert first.access != second.access, "they end within the minute, so they were renewed"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["echo locked >&2", "exit 1"], "locked"),
        (["echo no-json"], "no AWS credentials"),
        (["exit 0"], "no AWS credentials"),
    ],
)
async def test_a_program_that_gives_none_is_named(
    nobodys_aws: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], said: str
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    program(nobodys_aws, lines)
    with pytest.raises(ProviderError, match=said) as caught:
        await chained()
    assert (caught.value.code, caught.value.retryable) == ("credentials", False)


async def test_what_worked_before_is_asked_again(nobodys_aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    broken = nobodys_aws / "broken"
    said = '{"Version":1,"AccessKeyId":"A","SecretAccessKey":"B"}'
    program(nobodys_aws, [f"test ! -e {broken} || exit 1", f"echo '{said}'"])
    clock = FakeClock()
    chain = Chain(clock.time)
    assert (await chained(chain)).access == "A"
    broken.touch()
    clock.advance(aws.RECENT + 1)
    with pytest.raises(ProviderError, match="no AWS credentials") as caught:
        await chained(chain)
    assert caught.value.retryable
    broken.unlink()
    assert (await chained(chain)).access == "A"


async def test_without_credentials_the_message_says_what_to_set() -> None:
    with pytest.raises(ProviderError, match="set AWS_PROFILE or AWS_ACCESS_KEY_ID") as caught:
        await chained()
    assert (caught.value.code, caught.value.retryable) == ("credentials", False)


async def test_a_profile_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ProviderError, match="nobody"):
        await chained()


async def test_a_machines_service_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9/none")
    monkeypatch.setenv("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "1")
    import botocore.utils

    monkeypatch.setattr(botocore.utils.ContainerMetadataFetcher, "SLEEP_TIME", 0)  # the library's own wait
    with pytest.raises(ProviderError, match="no AWS credentials") as caught:
        await chained()
    assert (caught.value.code, caught.value.retryable) == ("credentials", True)


async def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "botocore":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ProviderError, match=r"pip install 'outrider\[bedrock\]'") as caught:
        await Signer("r").sign(REQUEST)
    assert (caught.value.code, caught.value.retryable) == ("extra", False)


def test_providers_load_no_vendors_library() -> None:
    code = (
        "import sys, daemon.provider.registry as r; from daemon.config import ProviderEntry as E; "
        "r.Registry({'bedrock': E('bedrock', key='k', region='x')}, env={}); "
        "print([m for m in ('botocore', 'boto3', 'anthropic', 'openai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# The region.


def test_the_region_is_the_environments_else_the_profiles(nobodys_aws: Path) -> None:
    config = nobodys_aws / "config"
    env = {"HOME": str(nobodys_aws.parent)}
    assert aws.region(env) == ""
    config.write_text("[default]\nregion = a-1\n[profile mine]\nregion=b-2\n[profile odd]\noutput = text\n")
    assert aws.region(env) == "a-1"
    assert aws.region({**env, "AWS_PROFILE": "mine"}) == "b-2"
    assert aws.region({**env, "AWS_DEFAULT_PROFILE": "mine"}) == "b-2"
    assert aws.region({**env, "AWS_PROFILE": "odd"}) == ""
    assert aws.region({**env, "AWS_DEFAULT_REGION": "c-3"}) == "c-3"
    assert aws.region({**env, "AWS_DEFAULT_REGION": "c-3", "AWS_REGION": " d-4 "}) == "d-4"
    assert aws.region({**env, "AWS_CONFIG_FILE": str(config), "HOME": "/nowhere"}) == "a-1"


@pytest.mark.parametrize("text", [b"no section", b"[half", b"\xff\xfe", b"[default]\nregion"])
def test_a_profiles_file_that_does_not_read_names_no_region(nobodys_aws: Path, text: bytes) -> None:
    (nobodys_aws / "config").write_bytes(text)
    assert aws.region({"HOME": str(nobodys_aws.parent)}) == ""
