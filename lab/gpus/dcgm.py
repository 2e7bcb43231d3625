"""The text that dcgm-exporter 4.8 serves of a GPU: names, labels in their order, and the form of numbers."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from lab.gpus.shapes import Load

GPU_MEMORY_MIB: Final = 81_079
XIDS: Final = {
    0: "No Error",
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "Preemptive cleanup, due to previous errors",
    48: "Double Bit ECC Error",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure",
    74: "NVLINK Error",
    79: "GPU has fallen off the bus",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
}
# Code, name until DCGM 4.5 and since, type, form of the number and help of each metric.
METRICS: Final = tuple(csv.DictReader(Path(__file__).with_name("counters.csv").read_text().splitlines()))
CODES: Final = tuple(metric["code"] for metric in METRICS)
CHOICES: Final = {
    "dcgm": ("4.5", "4.6", "4.7"),
    "host_label": ("Hostname", "hostname"),
    "cgroups": ("treydock", "jobstats"),
}


class Refused(Exception):
    """Raised for a request that makes no sense; its words are the answer."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the exporters of a fleet are set up."""

    dcgm: str = "4.5"
    """Whose names. 4.6 renamed most; its GPU_UTIL_RATIO is in percent, that of 4.7 is a share of one."""
    host_label: str = "Hostname"
    hpc_job: bool = True
    pods: bool = False
    """Labels namespace, pod and container; figures of the host by pod instead of by Slurm job."""
    serial: bool = False
    """A label with the GPU's serial number, as a `label` row of the counters file adds it."""
    lacks: Sequence[str] = ()
    """Codes of metrics that the counters file does not have."""
    host: bool = True
    """Whether anything serves figures of the hosts."""
    cgroups: str = "treydock"
    """Whose cgroup_exporter: jobid on `cgroup_info` alone, or on every series (jobstats)."""
    xid_window: float = 300.0
    interval: float = 1.0
    """Seconds between two scrapes."""
    seed: int = 0

    def changed(self, said: Mapping[str, Any]) -> Options:
        for key, choices in CHOICES.items():
            if said.get(key, choices[0]) not in choices:
                raise Refused(f"{key} is one of: {', '.join(choices)}")
        if strange := set(said.get("lacks", ())) - set(CODES):
            raise Refused(f"no metric has the code {min(strange)}; codes: {', '.join(CODES)}")
        return replace(self, **said)

    def name(self, metric: Mapping[str, str]) -> str:
        return metric["old" if self.dcgm == "4.5" else "new"]


@dataclass(slots=True)
class Fault:
    """What is wrong with a GPU. A value replaces what a healthy GPU shows; None repairs it."""

    xid: int = 0
    """The last XID. Those before it still count in the window; 0 resets the GPU and forgets them."""
    temperature: int | None = None
    memory_temperature: int | None = None
    ecc: int | None = None
    remap: int | None = None
    nvlink: int | None = None
    throttle: int | None = None
    gone: bool | None = None
    """No series at all: what is left of a GPU that DCGM no longer reaches."""
    seen: list[tuple[float, int]] = field(default_factory=list)

    def change(self, said: Mapping[str, Any], now: float) -> None:
        if strange := said.keys() - (set(Fault.__slots__) - {"seen"}):
            raise Refused(f"a GPU has no fault {min(strange)}")
        for key, value in said.items():
            setattr(self, key, value or 0 if key == "xid" else value)
        if "xid" in said:
            self.seen = [*self.seen, (now, self.xid)] if self.xid else []


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a MIG instance of one."""

    gpu: int
    instance: int = 0
    profile: str = ""

    @property
    def name(self) -> str:
        return f"{self.gpu}.{self.instance}" if self.instance else str(self.gpu)

    @property
    def memory(self) -> int:
        return (
            int(self.profile.partition(".")[2].removesuffix("gb")) * 1000 if self.profile else GPU_MEMORY_MIB
        )


def power(parts: Sequence[tuple[Device, Load]]) -> float:
    """Watts of a whole GPU, from what its MIG instances do: DCGM shows it on each of them."""
    work = sum(
        device.memory / GPU_MEMORY_MIB * (0.35 * load.engine + 0.4 * load.sm + 0.25 * load.tensor)
        for device, load in parts
    )
    return round(62 + 330 * work, 6)


def values(device: Device, load: Load, watts: float, energy: float, fault: Fault) -> dict[str, float]:
    """What a device shows, by code, in the scale of the old names."""
    used = 4 + round(load.memory * (device.memory - 4))
    healthy: dict[str, float] = {
        "util": round(load.engine * 100),
        "engine": round(load.engine, 6),
        "sm": round(load.sm, 6),
        "tensor": round(load.tensor, 6),
        "dram": round(load.dram, 6),
        "memory": used,
        "memory_free": device.memory - used,
        "power": watts,
        "energy": int(energy),
        "sm_clock": 1410 if load.engine else 210,
        "pcie_tx": int(load.pcie * 0.4),
        "pcie_rx": int(load.pcie),
        "nvlink_tx": int(load.nvlink),
        "temperature": int(31 + watts / 11),
        "memory_temperature": int(35 + watts / 10),
        "ecc": 0,
        "remap": 0,
        "nvlink": 0,
        "throttle": 0 if load.engine else 1,
    }
    if device.instance:
        del healthy["util"]  # blank in DCGM, hence absent
    return healthy | {key: wrong for key in healthy if (wrong := getattr(fault, key, None)) is not None}


@dataclass(frozen=True, slots=True)
class Shown:
    """A device with what it shows, and the labels of each series: one a holder, or one without any."""

    device: Device
    values: Mapping[str, float]
    fault: Fault
    holders: Sequence[Mapping[str, str]]


def text(host: str, model: str, shown: Sequence[Shown], options: Options, now: float) -> str:
    lines = []
    labels = [_labels(one.device, host, model, options) for one in shown]
    for metric in METRICS:
        if metric["code"] in options.lacks:
            continue
        name = options.name(metric)
        lines.append(f"# HELP {name} {metric['help']}\n# TYPE {name} {metric['type']}\n")
        for one, of_device in zip(shown, labels, strict=True):
            for own, value in _series(metric["code"], one, options, now):
                for holder in one.holders:
                    more = "".join(f',{key}="{word}"' for key, word in (own | dict(holder)).items())
                    lines.append(f"{name}{{{of_device}{more}}} {_number(metric, value, options)}\n")
    return "".join(lines)


def _number(metric: Mapping[str, str], value: float, options: Options) -> str:
    if metric["code"] == "util" and options.dcgm == "4.7":
        return f"{value / 100:f}"
    return str(int(value)) if metric["number"] == "whole" else f"{value:f}"


def _series(code: str, one: Shown, options: Options, now: float) -> list[tuple[dict[str, str], float]]:
    """Labels of its own and value of each series of a metric."""
    if code == "xid":
        xid = one.fault.xid
        return [({"err_code": str(xid), "err_msg": XIDS.get(xid, "Unknown Error")}, xid)]
    if code == "xid_count":
        window = {"window_size_in_ms": str(int(options.xid_window * 1000))}
        recent = [xid for at, xid in one.fault.seen if now - at <= options.xid_window]
        if not recent:
            return [(window, 0)]
        return [({**window, "xid": str(xid)}, recent.count(xid)) for xid in sorted(set(recent))]
    return [({}, one.values[code])] if code in one.values else []


def _labels(device: Device, host: str, model: str, options: Options) -> str:
    number = zlib.crc32(host.encode()) & 0xFFFF_F000 | device.gpu
    labels = {
        "gpu": str(device.gpu),
        "UUID": f"GPU-{number:08x}-0000-4000-8000-000000000000",
        "pci_bus_id": f"00000000:{7 + 8 * device.gpu:02X}:00.0",
        "device": f"nvidia{device.gpu}",
        "modelName": model,
    }
    if device.instance:
        labels |= {"GPU_I_PROFILE": device.profile, "GPU_I_ID": str(device.instance)}
    labels[options.host_label] = host
    if options.serial:
        labels["DCGM_FI_DEV_SERIAL"] = f"13{number:011d}"
    labels["DCGM_FI_DRIVER_VERSION"] = "570.86.15"
    return ",".join(f'{key}="{value}"' for key, value in labels.items())
