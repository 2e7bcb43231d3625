"""Change pending jobs on Slurm: what to send for it, and what Slurm does not let change. Pure.

job_submit.lua checks a changed job as a new one, and gives it the partitions and the QOS of its team.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairway.engines.slurm.policy.partitions import SupplySite
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import Order
from fairway.model.job_change import SUBMIT_AGAIN, WaitingChange, job_started
from fairway.model.names import PriorityName

TOLERATES_LOSS: Final = "tolerates-loss"
"""What job_submit.lua looks for in the comment of a job on spot nodes."""
_PENDING: Final = "PENDING"
_STARTED: Final = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING"})
_GOVERNED: Final = "fairway:"
"""How the admin comment of a job begins that job_submit.lua has checked."""


def check_change(before: Order, after: Order, fleet: Fleet) -> None:
    """Return if a pending job can be changed so. Raises Refused otherwise."""
    if before.spec.nodes == 1 and after.spec.nodes > 1 and before.spec.script is None:
        raise Refused(
            "CannotChange",
            "a command for one node does not start on several: its batch script was made for one",
            SUBMIT_AGAIN,
        )
    for name in (before.priority, after.priority):
        # Slurm lets only root set the priority that an urgent job has.
        if before.priority != after.priority and _is_urgent(name, fleet):
            raise Refused(
                "CannotChange",
                f"Slurm does not let a waiting job change from {before.priority} to {after.priority}: "
                f"{name} ranks above the default priority",
                SUBMIT_AGAIN,
            )


def update(change: WaitingChange, site: SupplySite, found: Any) -> Mapping[str, Any]:
    """Return what to POST to a job, given the reply that has it; nothing if it is so already or gone.

    Raises Refused if it has started otherwise.
    """
    before, after = change.before, change.after
    current = next(iter((found or {}).get("jobs") or ()), None)
    if current is None:
        return {}
    body: dict[str, Any] = {}
    nodes = after.spec.nodes
    if not _has_gpus(current, after, site):
        body |= {"partition": site.partition, "tres_per_node": f"{site.tres}:{after.spec.gpus.count}"}
    if _number(current.get("node_count")) != nodes:
        cpus = nodes * (after.spec.cpus or 1)
        body |= {"minimum_nodes": nodes, "maximum_nodes": nodes, "tasks": nodes, "minimum_cpus": cpus}
    if after.spec.time_seconds is not None:
        minutes = max(1, -(-after.spec.time_seconds // 60))
        if _number(current.get("time_limit")) != minutes:
            body["time_limit"] = {"set": True, "number": minutes}
    states = set(current.get("job_state") or ())
    if _PENDING not in states:
        if body and states & _STARTED:
            raise job_started(f"job {change.engine_id}")
        return {}
    if before.priority != after.priority or (
        "partition" in body and (current.get("admin_comment") or "").startswith(_GOVERNED)
    ):
        body["qos"] = str(after.priority)  # by name; job_submit.lua makes it the team's QOS
    comment = current.get("comment") or ""
    if body and site.spot and TOLERATES_LOSS not in comment:
        body["comment"] = f"{comment} {TOLERATES_LOSS}".strip()
    return body


def _has_gpus(current: Mapping[str, Any], after: Order, site: SupplySite) -> bool:
    """Return whether a job asks for these GPUs, in a partition of their pool."""
    names = set((current.get("partition") or "").split(","))
    count = (current.get("tres_per_node") or "").rpartition(":")[2]
    return bool(names & {*site.partitions, site.lent_partition}) and count == str(after.spec.gpus.count)


def _number(value: Any) -> int | None:
    """Return a number of the API, which may be unset."""
    return value["number"] if isinstance(value, Mapping) and value.get("set") else None


def _is_urgent(name: PriorityName, fleet: Fleet) -> bool:
    priority = next((p for p in fleet.priorities if p.name == name), None)
    return priority is not None and not priority.preemptible and priority.rank > fleet.default_priority.rank
