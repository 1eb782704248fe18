"""The counts of a daemon as Prometheus text."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, get_args, get_type_hints

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from daemon.harness.counts import Counts
from daemon.protocol import api
from daemon.protocol.records import Status

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STATES: Final = ("connected", "refused", "gone")
PATHS: Final = ("direct", "relay", "none")


def text(
    counts: Counts,
    version: str,
    sessions: Mapping[Status, int],
    workers: Iterable[api.WorkerInfo],
    mesh: api.MeshInfo,
) -> bytes:
    """All metrics of this moment. `sessions`: how many there are in each status."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now(counts, version, sessions, list(workers), mesh))
    return generate_latest(registry)


class _Now(Collector):
    def __init__(
        self,
        counts: Counts,
        version: str,
        sessions: Mapping[Status, int],
        workers: Sequence[api.WorkerInfo],
        mesh: api.MeshInfo,
    ) -> None:
        self._counts = counts
        self._version = version
        self._sessions = sessions
        self._workers: Counter[str] = Counter(worker.state for worker in workers)
        self._paths = Counter(worker.mesh.path or "none" for worker in workers if worker.mesh is not None)
        self._rx = sum(worker.mesh.rx for worker in workers if worker.mesh is not None)
        self._tx = sum(worker.mesh.tx for worker in workers if worker.mesh is not None)
        self._mesh = mesh

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
        failures = CounterMetricFamily(
            "outrider_step_failures", "Steps that failed, by class of error.", labels=["provider", "code"]
        )
        for labels, count in sorted(counts.failures.items()):
            failures.add_metric(labels, count)
        yield failures
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
        yield from self._of_the_mesh()

    def _of_the_mesh(self) -> Iterator[Metric]:
        states: tuple[str, ...] = get_args(get_type_hints(api.MeshInfo)["state"])
        now = {state: int(state == self._mesh.state) for state in states}
        yield _gauge("outrider_mesh", "1 for the state that the mesh is in.", "state", now)
        paths = {path: self._paths[path] for path in PATHS}
        yield _gauge(
            "outrider_mesh_workers", "Workers that joined, by how their packets come.", "path", paths
        )
        traffic = {"in": self._rx, "out": self._tx}
        yield _gauge(
            "outrider_mesh_bytes", "Bytes from and to the workers since the mesh is up.", "way", traffic
        )
        if (relay := self._mesh.relay) is None:
            return
        yield GaugeMetricFamily(
            "outrider_relay_connections", "Open relay connections.", value=relay.connections
        )
        for name, what, counts in [
            ("opened", "Relay connections that were opened.", {"": relay.opened}),
            ("refused", "Relay connections that there was no room for.", {"": relay.refused}),
            ("hostile", "Relay connections that were no WireGuard's.", {"": relay.hostile}),
            ("dropped", "Packets that the relay dropped.", {"": relay.dropped}),
            (
                "packets",
                "Packets that the relay carried.",
                {"in": relay.up_packets, "out": relay.down_packets},
            ),
            ("bytes", "Bytes that the relay carried.", {"in": relay.up_bytes, "out": relay.down_bytes}),
        ]:
            if "" in counts:
                yield CounterMetricFamily(f"outrider_relay_{name}", what, value=counts[""])
            else:
                yield _counter(f"outrider_relay_{name}", what, "way", counts)


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
