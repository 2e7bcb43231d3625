"""A site: the configuration files of a Slurm cluster as its administrators made it (see sites/README.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lab import sites

SITES = Path(__file__).parent / "sites"
_NODE = re.compile(r"^NodeName=(?!DEFAULT\b)(\S+)", re.IGNORECASE)


def site_names() -> list[str]:
    """The names of all sites."""
    return sites.names(SITES, "slurm.conf")


@dataclass(frozen=True)
class Site:
    """The files of one site."""

    name: str

    def __post_init__(self) -> None:
        sites.require(self.name, site_names())

    def text(self, file: str) -> str:
        """A file of the site; empty if it has none of that name."""
        path = SITES / self.name / file
        return path.read_text() if path.exists() else ""

    def lines(self, file: str) -> list[str]:
        """The lines of a file, without comments and empty ones."""
        return [line for line in self.text(file).splitlines() if line.strip() and not line.startswith("#")]

    @cached_property
    def node_names(self) -> list[str]:
        """Every node, in the order of slurm.conf."""
        found = [match[1] for line in self.lines("slurm.conf") if (match := _NODE.match(line))]
        return [name for hosts in found for name in expanded(hosts)]

    @property
    def has_accounting(self) -> bool:
        """Whether the site runs slurmdbd."""
        return not any("accounting_storage/none" in line for line in self.lines("slurm.conf"))

    def slurm_conf(self, where: str, ports: range, *, with_partition_qos: bool) -> list[str]:
        """The lines of slurm.conf, nodes with an address and ports of this machine.

        slurmctld does not start while the QOS of a partition does not exist, and QOS need a database that
        slurmctld has registered with: so the first start is without them, as administrators do it.
        """
        at = 0

        def placed(line: str) -> str:
            nonlocal at
            if match := _NODE.match(line):
                row = ports[at : at + len(expanded(match[1]))]
                at += len(row)
                port = f"[{row[0]}-{row[-1]}]" if len(row) > 1 else str(row[0])
                return f"{line} {where} Port={port}"
            if line.startswith("PartitionName=") and not with_partition_qos:
                return re.sub(r"\s+(?:Allow|Deny)?QoS=\S+", "", line, flags=re.IGNORECASE)
            return line

        return [placed(line) for line in self.lines("slurm.conf")]


def expanded(hosts: str) -> tuple[str, ...]:
    """`gpu[01-03],fat01` as names; one pair of brackets in each."""
    names: list[str] = []
    for stem, inside in re.findall(r"([A-Za-z][\w-]*?)(\[[^\]]*\]|\d+)(?:,|$)", hosts):
        for part in inside.strip("[]").split(","):
            first, _, last = part.partition("-")
            names += [f"{stem}{n:0{len(first)}}" for n in range(int(first), int(last or first) + 1)]
    return tuple(names)
