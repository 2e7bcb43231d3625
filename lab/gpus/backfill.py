"""Give a Prometheus of the lab a history that never happened: what a fleet's exporters would have served."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Final

from lab import prometheus
from lab.errors import LabError
from lab.gpus.fleet import Fleet, Node
from lab.instance import Instance

_LINE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_HOST: Final = re.compile(r'\b[Hh]ostname="')
_SECONDS: Final = 120


def backfill(instance: Instance, fleet: Fleet, since: int, until: int, step: int = 60) -> None:
    """Add the samples of a time, one each `step` seconds, to an instance of the kind `prometheus`.

    The time may be in the future. Prometheus is restarted: it reads new blocks at its start.
    """
    file = instance.folder / "backfill.om"
    with file.open("w") as out:
        for at in range(since, until, step):
            for node in fleet.nodes.values():
                out.writelines(_lines(fleet, node, at))
        out.write("# EOF\n")
    tool = prometheus.unpacked(instance.version.partition("+")[0]) / "usr/bin/promtool"
    words = ["tsdb", "create-blocks-from", "openmetrics", "--quiet", str(file), str(instance.folder / "data")]
    made = subprocess.run([tool, *words], capture_output=True, text=True, check=False, timeout=_SECONDS)
    if made.returncode:
        raise LabError("promtool cannot make blocks", made.stderr)
    file.unlink()
    instance.restart("prometheus")


def _lines(fleet: Fleet, node: Node, at: int) -> Iterator[str]:
    text, _ = fleet.metrics(node, float(at))
    target = f'instance="{node.name}",cluster="{node.cluster}"'
    for line in text.splitlines():
        if found := _LINE.fullmatch(line):
            name, labels, value = found.groups()
            yield f"{name}{{{_HOST.sub('node=' + chr(34), labels)},{target}}} {value} {at}\n"
    if fleet.options.host:
        for line in fleet.host(node, float(at)).splitlines():
            if found := _LINE.fullmatch(line):
                name, labels, value = found.groups()
                own = f"{labels}," if labels else ""
                yield f'{name}{{{own}node="{node.name}",{target}}} {value} {at}\n'
