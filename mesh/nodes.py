"""What a mesh knows of its nodes and of the tokens that machines join with. Values only."""

from enum import Enum

from msgspec import Struct


class Facts(Struct, frozen=True):
    """What a machine says of itself when it joins. `name`: the one it would have; empty: one made of its hostname."""

    hostname: str
    os: str
    arch: str
    release: str
    name: str = ""


class Node(Struct, frozen=True, kw_only=True):
    """A machine that joined. Times are seconds since the epoch.

    `number` makes its address. `quiet`: since when it has not been heard of, None while it is. `token`: the id of the
    one it joined with last. `removed`: its key is refused for ever, and its name may be another's.
    """

    number: int
    name: str
    key: bytes
    preshared: bytes
    token: int
    ephemeral: bool
    facts: Facts
    joined: float
    quiet: float | None
    removed: float | None

    def __repr__(self) -> str:
        return f"Node(number={self.number}, name={self.name!r})"


class Grant(Struct, frozen=True, kw_only=True):
    """What a token allows; its secret is not known here. `uses`: machines that it still lets join."""

    id: int
    label: str
    uses: int
    created: float
    expires: float
    ephemeral: bool
    revoked: float | None

    def good(self, now: float) -> bool:
        """Whether it lets anything join at this time; `uses` apart."""
        return self.revoked is None and now < self.expires


class Refusal(Enum):
    """Why a join is refused."""

    TOKEN = "the token is not known, used up, expired or revoked"
    REMOVED = "the machine's key was removed"
    REPLAYED = "this very request was answered before"
