"""What hosts did goes to the jobs on them; what is not exported is not measured."""

from __future__ import annotations

from typing import cast

from fairway.model.gpu_use import Device, GpuUse, Holding, HostUse, JobDevices, Window
from fairway.model.job import JobId
from fairway.telemetry.attribution import Holders
from fairway.telemetry.hosts import attribute_hosts
from fairway.telemetry.prometheus import Labels, Point, Prometheus, TelemetryUnreachable, VectorRow
from fairway.telemetry.reader import NodeNames, WindowReader

WINDOW = Window(1_200_000, 1_200_300)
ONE, GANG = JobId(1), JobId(2)
HOLDERS = Holders(
    [
        Holding(ONE, 1, WINDOW.start, WINDOW.end, frozenset({"17"})),
        Holding(GANG, 2, WINDOW.start, WINDOW.end, frozenset({"ml/train-0", "ml/train-1"})),
    ],
    WINDOW,
)
JOBS: JobDevices = {
    ONE: {Device("n1", "0"): GpuUse()},
    GANG: {Device("n1", "1"): GpuUse(), Device("n2", "0"): GpuUse()},
}


def test_cores_by_holder_and_waits_by_node() -> None:
    busy = {"17": 6.0, "ml/train-0": 1.0, "ml/train-1": 9.0, "ml/other": 3.0, "": 99.0}
    given = {"17": 8.0, "ml/train-0": 4.0, "ml/train-1": 4.0, "ml/other": 3.0}
    assert attribute_hosts(busy, given, {"n1": 0.5, "n2": 0.1, "n3": 1.0}, JOBS, HOLDERS) == {
        ONE: HostUse(1800.0, 2400.0, 300.0, 150.0, 300.0),
        GANG: HostUse(1500.0, 2400.0, 300.0, 180.0, 600.0),  # no more busy than given
    }


def test_what_is_not_exported_is_not_measured() -> None:
    assert attribute_hosts({"17": 6.0}, {}, {}, JOBS, HOLDERS) == {}
    assert attribute_hosts({}, {"17": 6.0}, {"n2": 0.1}, JOBS, HOLDERS) == {
        GANG: HostUse(0.0, 0.0, 0.0, 30.0, 300.0)
    }


class Asked:
    """A Prometheus that has GPUs, and refuses what is asked of hosts."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    async def vector(self, query: str, at: float) -> tuple[VectorRow, ...]:
        self.queries.append(query)
        if "cgroup" in query or "node_pressure" in query:
            raise TelemetryUnreachable("TelemetryUnreachable", "query would load too many samples", "")
        labels = Labels(node="n1", gpu="0", hpc_job="17")
        value = "20" if "count_over_time" in query else "0.5"
        return (VectorRow(labels, Point(at, value)),)

    async def matrix(self, query: str, at: float) -> tuple[object, ...]:
        return ()


async def test_hosts_that_cannot_be_read_do_not_keep_gpus_from_being_read() -> None:
    reader = WindowReader(cast("Prometheus", Asked()), 'cluster="hpc"', NodeNames({"n1"}))
    holding = Holding(ONE, 1, WINDOW.start, WINDOW.end, frozenset({"17"}))
    use = await reader.read(WINDOW, [holding], 15.0)
    assert use.jobs[ONE][Device("n1", "0")].measured == 300.0
    assert use.hosts == {}


def test_a_host_is_named_by_its_label_or_by_its_address() -> None:
    assert Labels(instance="gpu001:9100").machine == "gpu001"
    assert Labels(instance="gpu001").machine == "gpu001"
    assert Labels(instance="10.0.0.1:9100", nodename="gpu001").machine == "gpu001"
    assert Labels(instance="10.0.0.1:9100", node="gpu002").machine == "gpu002"
