"""Make AWS event-stream frames: for tests, mock servers and the benchmark. botocore has a reader alone."""

import json
import struct
from typing import Any
from zlib import crc32


def header(name: str, value: str) -> bytes:
    """A header whose value is a text."""
    said, text = name.encode(), value.encode()
    return struct.pack(">B", len(said)) + said + struct.pack(">BH", 7, len(text)) + text


def framed(headers: bytes, payload: bytes) -> bytes:
    """A frame of headers that are already encoded."""
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    front = prelude + struct.pack(">I", crc32(prelude)) + headers + payload
    return front + struct.pack(">I", crc32(front))


def event(name: str, **fields: Any) -> bytes:
    """An event as Bedrock sends it."""
    heads = (":event-type", name), (":content-type", "application/json"), (":message-type", "event")
    return framed(b"".join(header(*head) for head in heads), json.dumps(fields).encode())


def exception(name: str, **fields: Any) -> bytes:
    """An exception inside a stream."""
    heads = (":exception-type", name), (":content-type", "application/json"), (":message-type", "exception")
    return framed(b"".join(header(*head) for head in heads), json.dumps(fields).encode())
