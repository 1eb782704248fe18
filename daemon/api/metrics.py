"""The counts of a daemon as Prometheus text."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from daemon.harness.counts import Counts
from daemon.protocol import api
from daemon.protocol.records import Status

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STATES: Final = ("connected", "refused", "gone")


def text(
    counts: Counts, version: str, sessions: Mapping[Status, int], workers: Iterable[api.WorkerInfo]
) -> bytes:
    """All metrics of this moment. `sessions`: how many there are in each status."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now(counts, version, sessions, workers))
    return generate_latest(registry)


class _Now(Collector):
    def __init__(
        self, counts: Counts, version: str, sessions: Mapping[Status, int], workers: Iterable[api.WorkerInfo]
    ) -> None:
        self._counts = counts
        self._version = version
        self._sessions = sessions
        self._workers: Counter[str] = Counter(worker.state for worker in workers)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        yield _gauge("outrider_info", "The release that runs.", "release", {self._version: 1})
        statuses: tuple[Status, ...] = get_args(Status)
        by_status: dict[str, int] = {status: self._sessions.get(status, 0) for status in statuses}
        yield _gauge("outrider_sessions", "Sessions by status.", "status", by_status)
        by_state = {state: self._workers[state] for state in STATES}
        yield _gauge("outrider_workers", "Workers by state.", "state", by_state)
        readers = {stream: counts.readers[stream] for stream in ("session", "daemon")}
        yield _gauge("outrider_event_readers", "Open event streams.", "of", readers)
        for name, what, values in [
            ("steps", "Steps that a provider answered.", counts.steps),
            ("provider_tries", "Requests sent to a provider.", counts.tries),
            ("provider_retries", "Requests sent to a provider again.", counts.retries),
            ("prompt_tokens", "Tokens that a provider read, cached ones included.", counts.prompt_tokens),
            ("output_tokens", "Tokens that a provider wrote.", counts.output_tokens),
        ]:
            yield _counter(f"outrider_{name}", what, "provider", values)
        by_failed = {"false": counts.calls[False], "true": counts.calls[True]}
        yield _counter("outrider_calls", "Tool calls with a result.", "failed", by_failed)
        answers = {str(status): count for status, count in sorted(counts.answers.items())}
        yield _counter("outrider_http_answers", "Answers of the HTTP API.", "status", answers)
        for name, what, value in [
            ("posts", "Posts that were appended.", counts.posts),
            ("records_appended", "Records written to session files.", counts.records),
            ("appended_bytes", "Bytes written to session files.", counts.bytes),
        ]:
            yield CounterMetricFamily(f"outrider_{name}", what, value=value)


def _counter(name: str, what: str, label: str, values: Mapping[str, float]) -> Metric:
    made = CounterMetricFamily(name, what, labels=[label])
    for value, count in values.items():
        made.add_metric([value], count)
    return made


def _gauge(name: str, what: str, label: str, values: Mapping[str, float]) -> Metric:
    made = GaugeMetricFamily(name, what, labels=[label])
    for value, count in values.items():
        made.add_metric([value], count)
    return made
