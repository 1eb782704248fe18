"""Tell apart what Bedrock answers when it refuses or breaks off, by AWS's names and its own words, over errors.py."""

import re
from collections.abc import Mapping
from typing import Final

from daemon.provider import errors, repair
from daemon.provider.base import ProviderError
from daemon.provider.eventstream import Frame

# The status that an exception would have had outside of a stream; a model's failure is no mistake of ours.
STATUS: Final = {
    "throttlingexception": 429,
    "modelnotreadyexception": 429,
    "servicequotaexceededexception": 429,
    "modeltimeoutexception": 408,
    "serviceunavailableexception": 503,
    "internalserverexception": 500,
    "modelstreamerrorexception": 500,
    "modelerrorexception": 500,
    "validationexception": 400,
    "accessdeniedexception": 403,
    "resourcenotfoundexception": 404,
}
FAILED_MODEL: Final = 424  # the model behind the API failed: worth another try
HISTORY: Final = re.compile(
    r"tool(Use|Result|Config)\b|tool (use|result) blocks|alternate between user and assistant"
    r"|(text field|content field).{0,60}(blank|empty)|thinking.{0,60}(modified|signature)",
    re.IGNORECASE,
)
KEY: Final = re.compile(
    r"expiredtoken|unrecognizedclient|invalidclienttokenid|invalidsignature|incompletesignature|signaturedoesnotmatch"
    r"|missingauthenticationtoken|security token .{0,40}(expired|invalid)|invalid api key|authentication failed",
    re.IGNORECASE,
)


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """What an answer of `status` other than 200 means."""
    words = headers.get("x-amzn-errortype", "")
    return _classed(errors.classify(status, headers, body), words)


def exception(frame: Frame) -> ProviderError:
    """What an exception inside a stream means; its payload names it and may quote the model's own."""
    try:
        said = repair.loads(frame.data)
    except ValueError:
        said = None
    fields = said if isinstance(said, dict) else {"message": frame.data.decode("utf-8", "replace")}
    message = str(fields.get("message") or fields.get("Message") or frame.name)
    if isinstance(original := fields.get("originalMessage"), str) and original not in message:
        message = f"{message}: {original}"
    status = STATUS.get(frame.name.lower(), 500)
    error = {"message": repair.text(message), "type": repair.text(frame.name), "status": status}
    return _classed(errors.in_stream(error), frame.name)


def _classed(error: ProviderError, name: str) -> ProviderError:
    """The same error, of a class of its own where AWS's name or words tell."""
    if error.status == FAILED_MODEL:
        error.code, error.retryable = "server", True
    elif error.status in (400, 403) and KEY.search(f"{name} {error.message}"):
        error.code = "auth"
    elif error.code == "invalid" and HISTORY.search(error.message):
        error.code = "bad_history"
    return error
