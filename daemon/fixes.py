"""What one can do about an error, by its code: in a session that failed of it, and where a provider was tried."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class Fix(Struct, frozen=True):
    """What helps. `session`: who has a session is told; `test`: who tried a provider, whose name NAME stands for; empty
    where a test does not end so.
    """

    session: str
    test: str = ""


RETRY: Final = "retry"
POST: Final = "post a message or retry"
EARLIER: Final = "go on in a copy of an earlier part (`outrider fork`), or in a new session"
LATER: Final = "it is there and refuses for now: try again later"
SLOW: Final = "look at the server: it was reached and did not answer in time"
OTHER: Final = "give the session another model (`outrider config`)"


def _same(what: str) -> Fix:
    """One that is the same for both, and worth a retry then."""
    return Fix(f"{what.replace(' NAME', '')}, then retry", what)


FIXES: Final[Mapping[str, Fix]] = {
    # The provider is not set up so that it can answer.
    "auth": _same("set the provider's key (`outrider providers set NAME`)"),
    "credentials": _same(
        "renew the AWS credentials where the daemon runs: `aws sso login`, or what the profile names"
    ),
    "extra": _same(
        "install what is missing where the daemon runs, or set the provider's key (`outrider providers set NAME`)"
    ),
    "permission": _same("check what the provider's key may do, and whether the account has this model"),
    "billing": _same("add credit with the provider"),
    "region": Fix(
        "set the provider's region (`outrider providers set`), or AWS_REGION where the daemon starts, then retry",
        "set its region: `outrider providers set NAME --region REGION`, or AWS_REGION where the daemon starts",
    ),
    "url": _same("correct the provider's url, key or headers"),
    "redirect": _same("correct the provider's url"),
    "not_a_stream": _same("correct the provider's url: what is there does not speak this wire"),
    "not_a_list": _same("correct the provider's url, or name its models in outrider.toml"),
    "tls": _same("check the provider's address, and whether its certificate is one that this machine trusts"),
    "connection": Fix(
        "see that the provider can be reached from the daemon's machine, then retry",
        "start the server, or correct the provider's url",
    ),
    # It refuses the request, and would again.
    "model": Fix(f"{OTHER}, then retry", "name one that it has: `outrider providers test NAME/MODEL`"),
    "not_found": Fix(
        "check the model's name, or give the session another (`outrider config`), then retry",
        "check the model's name (`outrider models`) and the provider's url",
    ),
    "invalid": Fix(
        "change what it does not take, params or model (`outrider config`), then retry",
        "it was reached and refuses the request: see docs/providers.md for what servers need (quirks)",
    ),
    "tools": Fix("give the session other tools (`outrider config`), then retry"),
    "bad_history": Fix(f"{OTHER} and retry, or {EARLIER}; `outrider check` says what is wrong"),
    "too_large": Fix(EARLIER),
    "context_overflow": Fix(EARLIER),
    "context": Fix(EARLIER),
    "limit": Fix("raise the limit (`outrider config`), then retry"),
    # It refuses for now, or was not heard to the end: another try may do.
    "rate_limit": Fix("retry in a while", LATER),
    "overloaded": Fix("retry in a while", LATER),
    "busy": Fix("retry in a while", LATER),
    "server": Fix("retry in a while", LATER),
    "timeout": Fix(RETRY, SLOW),
    "stalled": Fix(RETRY, SLOW),
    "cut": Fix(RETRY, "try again: the answer broke off"),
    "malformed": Fix(
        RETRY, "try again; if it stays so, what is at the provider's url does not speak this wire"
    ),
    "model_bad_call": Fix(POST, "try again: the model wrote a call that cannot be read"),
    "provider": Fix(RETRY, "try again"),
    # The answer is over, and is none or half of one.
    "too_long": Fix(
        "post a message that asks for less", "name another model: this one does not come to an end"
    ),
    "length": Fix(POST),
    "refusal": Fix("post another message"),
    "filter": Fix("post another message"),
    "paused": Fix(RETRY),
    "normal": Fix(POST),
    "calls": Fix(POST),
    "unknown": Fix(POST),
    # The harness itself.
    "stopped": Fix(POST),
    "no_space": Fix("make room for the data folder, then retry"),
    "internal": Fix("look at the daemon's log, then retry"),
}
UNKNOWN: Final = Fix(RETRY, "try again")  # of another release


def in_session(code: str) -> str:
    """What one can do about a session that failed with this code."""
    return FIXES.get(code, UNKNOWN).session


def after_test(code: str, name: str) -> str:
    """What one can do about the provider `name`, a test of which ended with this code."""
    return FIXES.get(code, UNKNOWN).test.replace("NAME", name)
