"""WireGuard's packets on their way through the relay: told from anything else, counted, and never piled up."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

MAX: Final = 2048  # bytes of a packet; WireGuard adds 32 to an MTU of 1420, and nobody has a larger one here
INITIATION: Final = 1
RESPONSE: Final = 2
_COOKIE: Final = 3
_DATA: Final = 4
_SIZES: Final = {INITIATION: 148, RESPONSE: 92, _COOKIE: 64}  # https://www.wireguard.com/protocol/
_SMALLEST_DATA: Final = 32  # an empty one, a keepalive; a full one is not padded beyond the MTU
WAITING: Final = (
    256  # packets that wait for one connection: 370 kB, what TCP inside needs for 30 Mbit/s at 100 ms
)
_BUFFER: Final = 1 << 20  # bytes; of the usual 212 kB a burst of 90 full packets is lost
_TURN: Final = 32  # packets that one socket is read for before others have their turn

Address = tuple[str, int]


def kind(packet: bytes) -> int:
    """A packet's type, 1 to 4; 0 for what is no packet of WireGuard. Its contents are for WireGuard to judge."""
    if len(packet) < _SMALLEST_DATA or len(packet) > MAX or packet[1:4] != b"\0\0\0":
        return 0
    if packet[0] == _DATA or _SIZES.get(packet[0]) == len(packet):
        return packet[0]
    return 0


def sender(initiation: bytes) -> bytes:
    """The 4 bytes that an initiation's sender goes by in what answers it."""
    return initiation[4:8]


def receiver(response: bytes) -> bytes:
    """The 4 bytes of whoever sent the initiation that this responds to."""
    return response[8:12]


class Allowance:
    """A bucket of tokens that fills at `rate` a second, to `burst` at the most. Pure: the time is the caller's."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, tokens: float, now: float) -> bool:
        """Take them if they are there; otherwise nothing is taken."""
        self._fill(now)
        if self._left < tokens:
            return False
        self._left -= tokens
        return True

    def owe(self, tokens: float, now: float) -> float:
        """Take them in any case; returns how many seconds to wait until the bucket is not below empty."""
        self._fill(now)
        self._left -= tokens
        return max(0.0, -self._left / self._rate)

    def _fill(self, now: float) -> None:
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now


class Waiting:
    """Packets that wait to be sent, `most` of them: the oldest goes first, out to the wire or into the void.

    What WireGuard sent last is worth most: behind a stall, TCP inside has sent the old ones again, and the first
    try of a handshake is of no use after the second.
    """

    def __init__(self, most: int = WAITING) -> None:
        self._packets: deque[bytes] = deque(maxlen=most)
        self._there = asyncio.Event()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._packets)

    def put(self, packet: bytes) -> None:
        """One more, never waiting."""
        self.dropped += len(self._packets) == self._packets.maxlen
        self._packets.append(packet)
        self._there.set()

    async def get(self) -> bytes:
        """The oldest, once there is one. For one caller at a time."""
        while not self._packets:
            self._there.clear()
            await self._there.wait()
        return self._packets.popleft()


class Port:
    """A UDP socket in the loop: hands on what comes, sends without ever waiting or queueing.

    `heard` gets each datagram (cut to MAX + 1 bytes) and where it is from. Takes the socket over; `close` it.
    """

    def __init__(self, sock: socket.socket, heard: Callable[[bytes, Address], None]) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._read)
        self.unsent = 0

    @property
    def address(self) -> Address:
        """Its own address."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    def send(self, packet: bytes, to: Address | None = None) -> bool:
        """Send one datagram, to where the socket is connected if not `to`; False when the system takes it not."""
        try:
            if to is None:
                self._socket.send(packet)
            else:
                self._socket.sendto(packet, to)
        except OSError:  # no room, nobody listens there, no way there: UDP promises nothing
            self.unsent += 1
            return False
        return True

    def close(self) -> None:
        """End it; nothing is handed on after this."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _read(self) -> None:
        for _ in range(_TURN):
            try:
                packet, source = self._socket.recvfrom(MAX + 1)
            except BlockingIOError:
                return
            except OSError:  # an earlier one was refused (ICMP): this socket is as good as before
                continue
            self._heard(packet, source[:2])
            if self._socket.fileno() < 0:
                return


def udp(host: str, connected: Address | None = None) -> socket.socket:
    """A UDP socket on the address `host` and a free port, or one that speaks only with `connected`. Raises OSError."""
    family = socket.AF_INET6 if ":" in (connected[0] if connected else host) else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)  # as far as the system lets us
        if connected is not None:
            made.connect(connected)
        else:
            made.bind((host, 0))
    except BaseException:
        made.close()
        raise
    return made
