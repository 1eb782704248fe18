"""What a daemon has done since it started: plain numbers, added to where it happens and shown by /metrics."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from daemon.protocol.records import Record, Usage


class Counts:
    """Those of one daemon. By provider where a Counter; `readers` are those of event streams now, by which stream."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.tries: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.failures: Counter[tuple[str, str]] = (
            Counter()
        )  # steps that came to nothing: by provider, class of error
        self.prompt_tokens: Counter[str] = Counter()
        self.output_tokens: Counter[str] = Counter()
        self.calls: Counter[bool] = Counter()  # by whether the result says that it failed
        self.answers: Counter[int] = Counter()  # of the HTTP API, by status
        self.readers: Counter[str] = Counter()
        self.posts = 0
        self.records = 0
        self.bytes = 0

    def step(self, provider: str, usage: Usage) -> None:
        """A step was completed."""
        self.steps[provider] += 1
        self.prompt_tokens[provider] += usage.prompt
        self.output_tokens[provider] += usage.output

    def trying(self, provider: str, tried: int) -> None:
        """A request goes out, the how manieth for the same answer."""
        self.tries[provider] += 1
        self.retries[provider] += tried > 1

    def appended(self, stored: Sequence[Record]) -> None:
        """Records went into a session's file: a header line and a body each, and their two newlines."""
        self.written(len(stored), sum(len(record.raw) + len(record.body) + 2 for record in stored))

    def written(self, records: int, size: int) -> None:
        """So many records of so many bytes went into a session's file."""
        self.records += records
        self.bytes += size

    @contextmanager
    def reader(self, stream: str) -> Iterator[None]:
        """Somebody reads events for as long as this is open."""
        self.readers[stream] += 1
        try:
            yield
        finally:
            self.readers[stream] -= 1
