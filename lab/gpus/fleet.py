"""A fleet of nodes with GPUs: who holds them, what is served of them, and the sums of that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from lab.gpus import dcgm
from lab.gpus.dcgm import CODES, Device, Fault, Options, Refused, Shown
from lab.gpus.shapes import CORES, CORES_OF, IDLE, SHAPE_NAMES, Load, Point, blur, load, together

GAP: Final = 1.5
"""After so many intervals without an answer, an answer counts for one interval and not for the gap."""
SUMMED: Final = tuple(code for code in CODES if code not in ("energy", "xid", "xid_count"))


@dataclass(slots=True)
class Node:
    name: str
    gpus: int = 8
    cluster: str = "lab"
    model: str = "NVIDIA A100-SXM4-80GB"
    mig: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Profiles of the MIG instances of a GPU: {"0": ["3g.40gb", "3g.40gb"]}."""
    devices: dict[str, Device] = field(default_factory=dict, init=False)
    faults: dict[int, Fault] = field(default_factory=lambda: defaultdict(Fault), init=False)
    holds: list[Hold] = field(default_factory=list, init=False)
    millijoules: dict[int, float] = field(default_factory=lambda: defaultdict(float), init=False)
    cpu_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float), init=False)
    waited: float = field(default=0.0, init=False)
    rendered: float = field(default=0.0, init=False)
    host_rendered: float = field(default=0.0, init=False)
    answered: float = field(default=0.0, init=False)
    silent_until: float = field(default=0.0, init=False)
    slow_until: float = field(default=0.0, init=False)
    delay: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        for gpu in range(self.gpus):
            profiles = self.mig.get(str(gpu), ())
            parts = [Device(gpu, at, profile) for at, profile in enumerate(profiles, 1)] or [Device(gpu)]
            self.devices |= {part.name: part for part in parts}

    def active(self, now: float) -> list[Hold]:
        return [hold for hold in self.holds if hold.start <= now < hold.until(now + 1)]


@dataclass(slots=True)
class Hold:
    """A job's hold of one GPU or MIG instance, and what was served of it."""

    job: str
    node: Node
    device: Device
    rank: int
    shape: str = "good"
    noise: float = 0.05
    start: float = 0.0
    end: float | None = None
    cpus: float = CORES
    namespace: str = "default"
    pod: str = ""
    container: str = "main"
    points: Sequence[Point] = ()
    """What a replay replays."""
    samples: int = 0
    measured: float = 0.0
    sums: dict[str, list[float]] = field(default_factory=lambda: {code: [0.0, 0.0, 0.0] for code in SUMMED})
    """By code: the sum of the values, their integral over time, the highest."""

    def until(self, now: float) -> float:
        return now if self.end is None else min(now, self.end)

    def load(self, now: float, seed: int) -> Load:
        clear = load(self.shape, self.rank, now - self.start, self.points, self.device.memory)
        moment = (self.node.name, self.device.name, round(now, 1))
        return blur(clear, self.noise, (seed, self.job), moment)

    def labels(self, options: Options) -> dict[str, str]:
        pod = {"container": self.container, "namespace": self.namespace, "pod": self.pod}
        job = {"hpc_job": self.job} if options.hpc_job else {}
        return dict(sorted((job | (pod if options.pods and self.pod else {})).items()))

    def count(self, values: Mapping[str, float], seconds: float, holders: int) -> None:
        self.samples += 1
        self.measured += seconds / holders
        for code, sums in self.sums.items():
            if code in values:
                sums[0] += values[code]
                sums[1] += values[code] * seconds / holders
                sums[2] = max(sums[2], values[code])

    def truth(self, now: float) -> dict[str, Any]:
        names = ("sum", "integral", "max")
        return {
            "job": self.job,
            "cluster": self.node.cluster,
            "node": self.node.name,
            "gpu": self.device.name,
            "start": self.start,
            "end": self.end,
            "held": max(0.0, self.until(now) - self.start),
            "share": self._share(now),
            "samples": self.samples,
            "measured": self.measured,
            "figures": {code: dict(zip(names, sums, strict=True)) for code, sums in self.sums.items()},
        }

    def _share(self, now: float) -> float:
        """Seconds of the device that are its own: where several jobs hold one, they share its time."""
        spans = [(one.start, one.until(now)) for one in self.node.holds if one.device == self.device]
        start, end = self.start, self.until(now)
        cuts = sorted({start, end} | {cut for span in spans for cut in span if start < cut < end})
        pieces = pairwise(cuts) if start < end else ()
        return sum((to - at) / sum(a <= at and to <= b for a, b in spans) for at, to in pieces)


class Fleet:
    def __init__(self, nodes: Iterable[Node], options: Options) -> None:
        self.options = options
        self.nodes = {node.name: node for node in nodes}

    def node(self, name: str) -> Node:
        if name not in self.nodes:
            raise Refused(f"there is no node {name}")
        return self.nodes[name]

    def hold(self, said: Mapping[str, Any], now: float) -> None:
        """Let a job hold GPUs of a node, or go on in another shape if it does."""
        told = {"start": now, "shape": "good", **said}
        job, node, gpus = (
            str(told.pop("job")),
            self.node(told.pop("node")),
            [str(g) for g in told.pop("gpus")],
        )
        if strange := set(gpus) - node.devices.keys():
            raise Refused(f"{node.name} has no GPU {min(strange)}; it has {', '.join(node.devices)}")
        if told["shape"] not in SHAPE_NAMES:
            raise Refused(f"there is no shape {told['shape']}; shapes: {', '.join(SHAPE_NAMES)}")
        if told["shape"] == "replay" and not told.get("points"):
            raise Refused("a replay needs points: [[second, duty in percent, memory in MiB], …]")
        told["cpus"] = told.get("cpus", CORES_OF.get(told["shape"], CORES) * len(gpus)) / len(gpus)
        for rank, gpu in enumerate(gpus):
            new = Hold(job, node, node.devices[gpu], rank, **told)
            for old in node.active(now):
                if (old.job, old.device) == (job, new.device):
                    new.start, new.samples, new.measured, new.sums = (
                        old.start,
                        old.samples,
                        old.measured,
                        old.sums,
                    )
                    node.holds.remove(old)
            node.holds.append(new)

    def end(self, job: str, now: float) -> None:
        active = [hold for node in self.nodes.values() for hold in node.active(now) if hold.job == job]
        if not active:
            raise Refused(f"no job {job} holds a GPU")
        for hold in active:
            hold.end = now

    def forget(self) -> None:
        for node in self.nodes.values():
            node.holds.clear()

    def metrics(self, node: Node, now: float) -> tuple[str, dict[str, Mapping[str, float]]]:
        """What the node's dcgm-exporter serves, as text, and as values by device."""
        by_device: dict[str, list[Hold]] = defaultdict(list)
        for hold in node.active(now):
            by_device[hold.device.name].append(hold)
        seed = self.options.seed
        loads = {name: together([hold.load(now, seed) for hold in by_device[name]]) for name in by_device}
        step, node.rendered = now - (node.rendered or now), now
        shown = []
        for gpu in range(node.gpus):
            devices = [device for device in node.devices.values() if device.gpu == gpu]
            watts = dcgm.power([(device, loads.get(device.name, IDLE)) for device in devices])
            node.millijoules[gpu] += watts * step * 1000
            fault = node.faults[gpu]
            for device in [] if fault.gone else devices:
                one = loads.get(device.name, IDLE)
                values = dcgm.values(device, one, watts, node.millijoules[gpu], fault)
                holders = [hold.labels(self.options) for hold in by_device[device.name]] or [{}]
                if not any(holders):  # nothing tells the holders apart
                    holders = [{}]
                shown.append(Shown(device, values, fault, holders))
        text = dcgm.text(node.name, node.model, shown, self.options, now)
        return text, {one.device.name: one.values for one in shown}

    def count(self, node: Node, values: Mapping[str, Mapping[str, float]], now: float) -> None:
        """Add what Prometheus was served to the sums of the jobs that held the GPUs then."""
        active = [hold for hold in node.active(now) if hold.device.name in values]
        devices = [hold.device.name for hold in active]
        for hold in active:
            seconds = now - max(node.answered, hold.start)
            if seconds > GAP * self.options.interval:
                seconds = self.options.interval
            hold.count(values[hold.device.name], seconds, devices.count(hold.device.name))
        node.answered = now

    def host(self, node: Node, now: float) -> str:
        """What is served of the node's host: CPU time by job, waits for storage by node."""
        cpus: dict[str, float] = defaultdict(float)
        waited = 0.0
        active = node.active(now)
        for hold in active:
            seconds = now - max(node.host_rendered or now, hold.start)
            one = hold.load(now, self.options.seed)
            node.cpu_seconds[hold.job] += one.cpu * hold.cpus * seconds
            cpus[hold.job] += hold.cpus
            waited = max(waited, one.io * seconds)
        node.waited += waited
        node.host_rendered = now
        lines = ["# TYPE node_pressure_io_waiting_seconds_total counter"]
        lines.append(f"node_pressure_io_waiting_seconds_total {node.waited:.6f}")
        for hold in {hold.job: hold for hold in active}.values():
            lines += _host_lines(hold, node.cpu_seconds[hold.job], cpus[hold.job], self.options)
        return "\n".join(lines) + "\n"

    def truth(self, now: float, job: str | None = None) -> list[dict[str, Any]]:
        """What was held and served, of one job or of all; one that was requeued has held more than once."""
        holds = [hold for node in self.nodes.values() for hold in node.holds]
        return [hold.truth(now) for hold in holds if job in (None, hold.job)]


def _host_lines(hold: Hold, seconds: float, cpus: float, options: Options) -> list[str]:
    if options.pods:
        pod = f'container="{hold.container}",namespace="{hold.namespace}",pod="{hold.pod}"'
        return [
            f'container_cpu_usage_seconds_total{{cpu="total",{pod}}} {seconds:.6f}',
            f'kube_pod_container_resource_requests{{{pod},resource="cpu",unit="core"}} {cpus:g}',
        ]
    cgroup = f'cgroup="/system.slice/slurmstepd.scope/job_{hold.job}"'
    labels = cgroup if options.cgroups == "treydock" else f'{cgroup},jobid="{hold.job}",step="",task=""'
    return [
        f"cgroup_cpu_total_seconds{{{labels}}} {seconds:.6f}",
        f"cgroup_cpus{{{labels}}} {cpus:g}",
        f'cgroup_info{{{cgroup},jobid="{hold.job}",uid="1000",username="alice"}} 1',
    ]
