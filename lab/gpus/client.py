"""Typed calls to the exporter and to the receiver of alerts, for tests and benchmarks."""

from __future__ import annotations

import csv
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lab.errors import LabError
from lab.gpus.shapes import Point, ShapeName


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of one hold, in the scale of the old names."""

    sum: float
    """Of the values as they were served: what `sum_over_time` gives."""
    integral: float
    """Value × seconds; where several jobs hold the GPU, the job's share of it."""
    max: float


@dataclass(frozen=True, slots=True)
class Held:
    """A job's hold of one GPU (`3`) or MIG instance (`3.1`)."""

    job: str
    cluster: str
    node: str
    gpu: str
    start: float
    end: float | None
    held: float
    """Seconds until now or its end."""
    share: float
    """The same, divided by the number of jobs that held the GPU at the time."""
    samples: int
    measured: float
    """Seconds that the samples stand for, divided in the same way."""
    figures: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class Truth:
    """What was held and what Prometheus was served, of one job or of all."""

    holds: Sequence[Held]

    @property
    def held(self) -> float:
        return sum(hold.held for hold in self.holds)

    @property
    def share(self) -> float:
        return sum(hold.share for hold in self.holds)

    @property
    def measured(self) -> float:
        return sum(hold.measured for hold in self.holds)

    @property
    def samples(self) -> int:
        return sum(hold.samples for hold in self.holds)

    def sum(self, code: str) -> float:
        return sum(hold.figures[code].sum for hold in self.holds)

    def integral(self, code: str) -> float:
        return sum(hold.figures[code].integral for hold in self.holds)

    def max(self, code: str) -> float:
        return max((hold.figures[code].max for hold in self.holds), default=0.0)


@dataclass(frozen=True, slots=True)
class Exporter:
    """The exporter of an instance of the kind `gpus`, at its EXPORTER_URL."""

    url: str

    def hold(
        self,
        job: str,
        node: str,
        gpus: Sequence[int | str],
        shape: ShapeName = "good",
        *,
        noise: float = 0.05,
        start: float | None = None,
        end: float | None = None,
        cpus: float | None = None,
        namespace: str | None = None,
        pod: str | None = None,
        points: Sequence[Point] = (),
    ) -> None:
        """Let a job hold GPUs, or go on in another shape if it holds them already.

        Times are seconds since 1970. `cpus` are those of all its GPUs on the node.
        """
        optional = {"start": start, "end": end, "cpus": cpus, "namespace": namespace, "pod": pod}
        given = {key: value for key, value in optional.items() if value is not None}
        what = {"job": job, "node": node, "gpus": list(gpus), "shape": shape, "noise": noise}
        self.hold_all([{**what, **given, "points": list(points)}])

    def hold_all(self, jobs: Iterable[Mapping[str, object]]) -> None:
        """The same for many at once, each as `PUT /jobs` takes it."""
        self._call("PUT", "jobs", list(jobs))

    def end(self, job: str) -> None:
        self._call("DELETE", f"jobs/{job}")

    def forget(self) -> None:
        """Forget all jobs, running and ended, and what was served of them."""
        self._call("DELETE", "jobs")

    def fault(self, node: str, gpu: int, **faults: int | bool | None) -> None:
        """Break a GPU, see `lab.gpus.dcgm.Fault`; None (for xid: 0) repairs."""
        self._call("PUT", f"n/{node}/g/{gpu}", faults)

    def silence(self, seconds: float, *nodes: str) -> None:
        """Let the exporters of these nodes, or of all, answer nothing for so long; 0 ends it."""
        self._call("PUT", "silence", {"nodes": nodes, "seconds": seconds})

    def slow(self, seconds: float, delay: float, *nodes: str) -> None:
        """Let each answer of these nodes, or of all, take `delay` seconds for so long."""
        self._call("PUT", "delay", {"nodes": nodes, "seconds": seconds, "delay": delay})

    def configure(self, **options: object) -> None:
        """Change how the exporters are set up, see `lab.gpus.dcgm.Options`."""
        self._call("PUT", "options", options)

    def nodes(self, *nodes: Mapping[str, object]) -> None:
        """Serve another fleet, see `lab.gpus.fleet.Node`; jobs and sums are forgotten."""
        self._call("PUT", "nodes", list(nodes))

    def truth(self, job: str | None = None) -> Truth:
        holds = []
        for raw in self._call("GET", f"truth/{job}" if job else "truth"):
            figures = {code: Figure(**sums) for code, sums in raw.pop("figures").items()}
            holds.append(Held(**raw, figures=figures))
        return Truth(holds)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        return _call(method, f"{self.url}/{path}", body)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One notification as Alertmanager sent it."""

    at: float
    path: str
    body: Mapping[str, Any]

    @property
    def status(self) -> Literal["firing", "resolved"]:
        status: Literal["firing", "resolved"] = self.body["status"]
        return status

    @property
    def alerts(self) -> Sequence[Mapping[str, Any]]:
        alerts: Sequence[Mapping[str, Any]] = self.body["alerts"]
        return alerts


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiver of alerts of an instance, at its WEBHOOK_URL."""

    url: str

    def received(self) -> list[Delivery]:
        return [Delivery(**raw) for raw in _call("GET", self.url)]

    def forget(self) -> None:
        _call("DELETE", self.url)

    def answer(self, status: int) -> None:
        """Answer every notification with this status; only with 200 it is recorded."""
        _call("PUT", self.url, {"status": status})


def points(file: Path, pod: str | None = None) -> list[Point]:
    """Read a recorded series for a replay: CSV with the columns second, duty (percent) and memory_mib.

    Of a file with a column pod, only the rows of that pod.
    """
    with file.open() as lines:
        return [
            (float(row["second"]), float(row["duty"]), float(row["memory_mib"] or 0))
            for row in csv.DictReader(lines)
            if pod in (None, row.get("pod"))
        ]


def _call(method: str, url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise LabError(f"{method} {url} is refused", error.read().decode()) from None
    except OSError as error:
        raise LabError(
            f"{method} {url} gets no answer", str(error), "python -m lab status; python -m lab up gpus"
        ) from None
