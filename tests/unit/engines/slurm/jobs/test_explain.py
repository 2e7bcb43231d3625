"""What slurmctld's records prove of a waiting job; values as Slurm 24.11's REST API gave them in the lab."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from fairway.engines.slurm.jobs.explain import (
    LimitedPartition,
    SizedNode,
    WaitingJob,
    explain,
    jobs_ahead,
)
from fairway.explain.findings import WaitFacts

NOW = datetime(2026, 11, 17, 12, 3, 25, tzinfo=UTC)
UNSET = {"set": False, "infinite": False, "number": 0}


def amount(number: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": number}


def job(**more: Any) -> WaitingJob:
    plain = {
        "job_id": 7,
        "partition": "gpu,gpu-lent",
        "qos": "vision.a100.own,fairway.lent",
        "state_reason": "None",
        "node_count": amount(1),
        "cpus_per_task": amount(1),
        "memory_per_cpu": amount(1000),
        "memory_per_node": UNSET,
        "time_limit": amount(30),
        "eligible_time": amount(1794917005),
        "priority": amount(100250),
        "tres_per_node": "gres/gpu:a100:8",
    }
    return msgspec.convert(plain | more, WaitingJob)


def node(number: int, used: int = 0, **more: Any) -> SizedNode:
    plain = {
        "name": f"gpu00{number}",
        "state": ["IDLE"],
        "partitions": ["gpu", "gpu-lent"],
        "gres": "gpu:a100:8",
        "gres_used": f"gpu:a100:{used}(IDX:0-{used})",
        "cpus": 64,
        "real_memory": 512000,
        "features": ["a100"],
    }
    return msgspec.convert(plain | more, SizedNode)


def partition(name: str, minutes: int | None = None, state: str = "UP") -> LimitedPartition:
    time = amount(minutes) if minutes else {"set": False, "infinite": True, "number": 0}
    return msgspec.convert(
        {"name": name, "maximums": {"time": time}, "partition": {"state": [state]}}, LimitedPartition
    )


W = "gpu, gpu-lent"
STATE: dict[str, Any] = {"partition": {"state": ["UP"]}}
OPEN = (partition("gpu"), partition("gpu-lent"))
NODES = (node(1), node(2))


def found(
    one: WaitingJob, nodes: tuple[SizedNode, ...] = NODES, partitions: tuple[LimitedPartition, ...] = OPEN
) -> WaitFacts:
    return explain(one, partitions, nodes, NOW)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"tres_per_node": "gres/gpu:a100:16"}, f"16 a100 GPUs per node, and no node of {W} has more than 8"),
        ({"tres_per_node": "gres/gpu:h100:1"}, f"1 h100 GPUs per node, and no node of {W} has more than 0"),
        ({"memory_per_node": amount(921600)}, f"900 GB of memory per node, and no node of {W}"),
        ({"cpus_per_task": amount(65)}, f"65 CPUs per node, and no node of {W} has more than 64"),
        ({"features": "h100"}, "nodes with h100, and gpu, gpu-lent has none"),
        ({"node_count": amount(3)}, "3 nodes, and only 2 of gpu, gpu-lent can ever satisfy it"),
    ],
)  # fmt: skip
def test_what_no_node_can_hold_never_starts(asked: dict[str, Any], text: str) -> None:
    (first, *_) = found(job(**asked)).findings
    assert first.code == "NoNodeFits" and text in first.text


@pytest.mark.parametrize("features", ["a100", "a100&gpu|a100", "[rack1*2&rack2*2]", ""])
def test_features_that_nodes_have_or_only_slurm_can_evaluate_do_not_matter(features: str) -> None:
    assert found(job(features=features.replace("&gpu", ""))).findings == ()


def test_time_over_every_partitions_maximum() -> None:
    short = (partition("gpu", 60), partition("gpu-lent", 120))
    (finding,) = found(job(time_limit=amount(300)), partitions=short).findings
    assert (finding.code, finding.text) == (
        "TimeAbovePartition",
        "The job requests 5 h, and gpu, gpu-lent allows 2 h at most",
    )
    assert found(job(time_limit=amount(100)), partitions=short).findings == ()


def test_reserved_nodes_are_for_jobs_of_a_reservation() -> None:
    """Slurm 26.05 gives None and ReqNodeNotAvail in turns."""
    reserved = node(1, state=["IDLE", "RESERVED"])
    (finding,) = found(job(required_nodes="gpu001"), (reserved, node(2))).findings
    assert (finding.code, finding.text) == (
        "NodesUnavailable",
        "The job requires specific nodes: gpu001 is reserved",
    )
    assert found(job(), (reserved, node(2))).findings == (), "another node will do"
    inside = found(job(required_nodes="gpu001", resv_name="demo"), (reserved, node(2))).findings
    assert [f.code for f in inside] == ["ReservationWait"]


def test_what_a_partition_limits_is_named() -> None:
    """Slurm says PartitionNodeLimit of more nodes than allowed and than there are, and PartitionConfig."""

    def limited(**more: Any) -> tuple[LimitedPartition, ...]:
        return tuple(
            msgspec.convert({"name": name, **STATE, **more}, LimitedPartition) for name in W.split(", ")
        )

    gang = job(state_reason="PartitionNodeLimit", node_count=amount(2))
    facts = found(gang, partitions=limited(maximums={"nodes": amount(1)}))
    assert (facts.code, facts.findings[0].text) == (
        "PartitionLimit",
        "The job requests 2 nodes, and gpu, gpu-lent allows 1 at most",
    )
    facts = found(job(state_reason="PartitionNodeLimit", node_count=amount(6)))
    assert (facts.code, facts.findings[0].code) == ("NoNodeFits", "NoNodeFits")
    refused = job(state_reason="PartitionConfig", account="research")
    facts = found(refused, partitions=limited(accounts={"allowed": "product,ops"}))
    assert (facts.code, facts.findings[0].text) == (
        "AccountRefused",
        "Partition gpu, gpu-lent admits the accounts product,ops, not research",
    )
    facts = found(refused, partitions=limited(accounts={"deny": "research"}))
    assert facts.findings[0].text == "Partition gpu, gpu-lent denies research"
    assert found(job(state_reason="PartitionConfig", account="product")).code == "PartitionLimit"


def test_nodes_that_take_no_work_are_named_with_why() -> None:
    drained = node(1, state=["IDLE", "DRAIN"], reason="broken fan")
    (named, *_) = found(job(required_nodes="gpu001"), (drained, node(2))).findings
    assert (named.code, named.text) == (
        "NodesUnavailable",
        "The job requires specific nodes: gpu001 is drained (broken fan)",
    )
    assert found(job(), (drained, node(2))).findings == ()
    (alone,) = found(job(), (drained,)).findings
    assert alone.code == "NodesUnavailable", "and if it came back, there would be room"
    busy = node(1, used=4, state=["MIXED", "DRAIN"], reason="broken fan")
    assert [f.code for f in found(job(), (busy,)).findings] == ["NodesUnavailable", "NotEnoughFree"]


def test_room_is_counted_by_node() -> None:
    (finding,) = found(job(), (node(1, used=4), node(2, used=5))).findings
    assert finding.code == "NotEnoughFree"
    assert finding.text == "7 GPUs free, at most 4 on one node, and the job needs 8 on one"
    (none,) = found(job(), (node(1, used=8), node(2, used=8))).findings
    assert none.text == "No GPU is free, and the job needs 8 on one"
    (memory,) = found(job(), (node(1, alloc_memory=512000), node(2, used=8))).findings
    assert memory.code == "NotEnoughFree" and "CPUs or memory" in memory.text


def test_room_that_is_not_below_one_switch() -> None:
    """Slurm gives the reason Resources or Priority; seen with `--switches=1` on both versions."""
    gang = job(state_reason="Resources", node_count=amount(2), required_switches=1)
    (rack,) = found(gang).findings
    assert (rack.code, rack.text) == (
        "NoRackFits",
        "2 nodes have room (gpu001, gpu002), but no 2 of them are below one switch",
    )
    (room,) = found(gang, (node(1), node(2, used=1))).findings
    assert room.code == "NotEnoughFree"
    assert found(job(node_count=amount(2))).findings == (), "anywhere"


def test_a_closed_partition_and_a_begin_time() -> None:
    closed = (partition("gpu", state="DOWN"), partition("gpu-lent", state="DOWN"))
    assert found(job(), partitions=closed).findings[0].code == "PartitionClosed"
    (begins,) = found(job(state_reason="BeginTime", eligible_time=amount(1794920605))).findings
    assert begins.text == "The job starts no earlier than 2026-11-17 13:03:25 UTC, in 60 min"


def test_which_construct_hides_the_reason() -> None:
    hidden = found(job()).hidden_by
    assert "2 partitions (gpu, gpu-lent)" in hidden and "several QOS" in hidden
    assert found(job(partition="gpu", qos="normal")).hidden_by == ""


def test_the_gate_of_one_partition_is_no_reason_where_another_is_the_way_in() -> None:
    """Seen while an urgent job waits: slurmctld tries to borrow in the partition for guarantees."""
    assert found(job(state_reason="MaxJobsPerAccount")).code == ""
    assert found(job(state_reason="MaxJobsPerAccount")).reason == ""
    alone = job(state_reason="MaxJobsPerAccount", partition="gpu", qos="fairway.lent")
    assert found(alone).code == "NotAdmitted"


def test_what_a_native_dependency_waits_for() -> None:
    facts = found(
        job(state_reason="Dependency", dependency="afterok:21(unfulfilled),afterany:22(unfulfilled)")
    )
    assert (facts.code, facts.after) == ("AfterAnother", ("21", "22"))


def test_who_is_ahead() -> None:
    lines = "9|100300|Priority\n7|100250|None\n8|100400|JobHeldUser\n12_[1-5]|200000|Resources\n6|100|None\n"
    assert jobs_ahead(lines, job()) == ("12", "9")


def test_of_equal_priorities_the_older_job_is_ahead_and_what_helps_others_never_is() -> None:
    lines = "4|4000000000|None|fairway-intervention\n"
    lines += "10|100250|None\n9|100250|None\n5|100250|Priority\n7|100250|None\n6_[0-3]|100250|Resources\n"
    assert jobs_ahead(lines, job()) == ("5", "6")
