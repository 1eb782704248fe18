"""Sign requests with AWS credentials from wherever botocore finds them; what may block there stays off the loop.

Credentials come from files, from a program, from the network (SSO, a role to assume, the machine's own address
169.254.169.254), and are renewed the same way. One thread at a time looks for them, whoever waits; it is a daemon
thread, since a program that never ends must not keep this one from ending.
"""

import asyncio
import configparser
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yarl
from msgspec import Struct, structs

from daemon.provider.base import ProviderError, Request

LIMIT: Final = 60.0  # seconds for credentials: a program may be slow, some networks are
RECENT: Final = (
    60.0  # seconds until credentials that do not renew themselves are looked up again: files change
)
LARGE: Final = 1 << 20  # bytes of a body whose digest takes milliseconds
SERVICE: Final = "bedrock"
CONTAINER: Final = "container-role"  # botocore's name for the service that a cluster gives its containers
MISSING: Final = (
    "AWS credentials need botocore, which is not installed: pip install 'outrider[bedrock]', "
    "or give the provider a key (AWS_BEARER_TOKEN_BEDROCK)"
)
NONE: Final = (
    "there are no AWS credentials: set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where the daemon "
    "runs, or give the provider a key (AWS_BEARER_TOKEN_BEDROCK)"
)


class Keys(Struct, frozen=True):
    """Credentials at one moment."""

    access: str
    secret: str
    token: str | None = None


class Signer:
    """Signs requests for one region. `find` looks for credentials, may block, and raises ProviderError."""

    def __init__(self, region: str, *, find: Callable[[], Keys] | None = None, limit: float = LIMIT) -> None:
        self.region = region
        self._find = find or Chain()
        self._limit = limit
        self._asking: asyncio.Future[Keys | ProviderError] | None = None

    async def sign(self, request: Request) -> Request:
        """The request with its signature, good for some minutes. Raises ProviderError."""
        keys = await self._keys()
        if len(request.body) > LARGE:
            return await asyncio.to_thread(self._signed, request, keys)
        return self._signed(request, keys)

    async def _keys(self) -> Keys:
        if self._asking is None:
            loop = asyncio.get_running_loop()
            self._asking = loop.create_future()
            ask = threading.Thread(
                target=self._ask, args=(loop, self._asking), name="aws credentials", daemon=True
            )
            ask.start()
        try:
            async with asyncio.timeout(self._limit):
                found = await asyncio.shield(self._asking)
        except TimeoutError:
            what = f"no AWS credentials within {self._limit:g} s; what the profile names for them does not answer"
            raise ProviderError(what, code="credentials", retryable=True) from None
        if isinstance(found, ProviderError):
            raise found
        return found

    def _ask(self, loop: asyncio.AbstractEventLoop, asked: "asyncio.Future[Keys | ProviderError]") -> None:
        """Of the thread's own."""
        found: Keys | ProviderError = ProviderError("the AWS credentials cannot be read", code="credentials")
        try:
            _botocore()
            found = self._find()
        except ProviderError as error:
            found = error
        finally:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._answer, asked, found)

    def _answer(self, asked: "asyncio.Future[Keys | ProviderError]", found: Keys | ProviderError) -> None:
        self._asking = None
        if not asked.done():
            asked.set_result(found)

    def _signed(self, request: Request, keys: Keys) -> Request:
        from botocore.auth import SigV4Auth  # loaded by the thread before
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        url = str(yarl.URL(request.url))  # as it is sent
        signed = {
            name: value
            for name, value in request.headers.items()
            if name == "content-type" or name.startswith("x-amz-")
        }
        made = AWSRequest("POST", url, headers=signed, data=request.body)
        credentials = Credentials(keys.access, keys.secret, keys.token)
        SigV4Auth(credentials, SERVICE, self.region).add_auth(made)
        headers = {name.lower(): value for name, value in made.headers.items()}
        return structs.replace(request, url=url, headers={**request.headers, **headers})


class Chain:
    """Credentials as botocore finds them: the environment, profiles, roles, SSO, programs, the machine's own.

    For one thread at a time; each call may block.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._credentials: Any = None
        self._found = 0.0
        self._worked = False

    def __call__(self) -> Keys:
        """Those of now, renewed where they are about to end. Raises ProviderError."""
        botocore = _botocore()
        known = botocore.exceptions
        try:
            if self._stale(botocore):
                self._credentials = botocore.session.Session().get_credentials()
                self._found = self._clock()
            if self._credentials is None:
                raise ProviderError(NONE, code="credentials")
            frozen = self._credentials.get_frozen_credentials()
        except (known.ConnectionError, known.HTTPClientError, known.MetadataRetrievalError) as error:
            raise _translated(error, retryable=True) from None
        except (known.BotoCoreError, known.ClientError, RuntimeError, OSError, ValueError, KeyError) as error:
            self._credentials = None
            machine = getattr(error, "kwargs", {}).get("provider") == CONTAINER
            raise _translated(error, retryable=machine or self._worked) from None  # what worked may again
        self._worked = True
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)

    def _stale(self, botocore: Any) -> bool:
        if self._credentials is None:
            return True
        renews = isinstance(self._credentials, botocore.credentials.RefreshableCredentials)
        return not renews and self._clock() - self._found > RECENT


def _botocore() -> Any:
    """The library, loaded where it is first needed. Raises ProviderError where it is not installed."""
    try:
        import botocore.auth
        import botocore.awsrequest
        import botocore.credentials
        import botocore.exceptions
        import botocore.session
    except ImportError:
        raise ProviderError(MISSING, code="extra") from None
    return botocore


def _translated(error: Exception, *, retryable: bool) -> ProviderError:
    said = " ".join(str(error).split()) or type(error).__name__
    return ProviderError(f"no AWS credentials: {said}", code="credentials", retryable=retryable)


def region(env: Mapping[str, str]) -> str:
    """The region that the environment or the profile's file names; empty for none. Reads a file: not for the loop."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if found := env.get(name, "").strip():
            return found
    profile = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"
    home = Path(env.get("HOME") or Path.home())
    file = Path(env.get("AWS_CONFIG_FILE") or home / ".aws/config").expanduser()
    parser = configparser.RawConfigParser(strict=False)
    with suppress(OSError, UnicodeDecodeError, configparser.Error):
        parser.read_string(file.read_text("utf-8"))
    section = profile if profile == "default" else f"profile {profile}"
    return parser.get(section, "region", fallback="").strip()
