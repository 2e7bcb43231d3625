"""Situations that occur on every engine: limits of the policy, room, and what people do."""

from __future__ import annotations

import time
from typing import Any

from fairway.model.job import JobState
from tests.situations.desk import EXPLAINED_SECONDS, Desk
from tests.situations.resolve import (
    apart,
    command,
    fewer_gpus,
    other_team,
    raise_borrow,
    raise_budget,
    reachable,
    repaired,
    smaller,
)
from tests.situations.situation import SLURM, situation
from tests.waiting import Deadline, until

# limits of the policy


@situation(
    "the team is at its ceiling",
    "TeamAtCeiling",
    kubernetes=("TeamAtCeiling",),
    shows=["Team capped already uses 4 of the 4 GPUs it may use in gpu", "bob holds 4 GPUs with 1 job"],
    scene="limits",
    resolve=raise_borrow,
)
def team_at_ceiling(desk: Desk) -> str:
    return desk.submit("capped", 2)


@situation(
    "a parent team is at its ceiling",
    "TeamAtCeiling",
    shows=["Team physics already uses 8 of the 8 GPUs", "alice holds 4 GPUs.* bob holds 4 GPUs"],
    scene="limits",
)
def parent_at_ceiling(desk: Desk) -> str:
    return desk.submit("quantum", 2)


@situation(
    "the user is at the limit of one user, and the team has room",
    "UserLimit",
    shows=["User carol already uses 2 of the 2 GPUs that one user of limited may use"],
    scene="limits",
)
def user_at_limit(desk: Desk) -> str:
    return desk.submit("limited", 1)


@situation(
    "the user is at the limit, and the team at its ceiling",
    slurm=("TeamAtCeiling", "UserLimit"),
    kubernetes=("UserLimit", "TeamAtCeiling"),
    shows=["User carol already uses 2", "Team limited already uses"],
    scene="limits",
)
def user_and_team_at_limit(desk: Desk) -> str:
    desk.run("limited", 2, by="alice")
    return desk.submit("limited", 2)


@situation(
    "the team at its ceiling, jobs of it ahead, and no GPU free",
    "TeamAtCeiling",
    "NotItsTurn",
    "NotEnoughFree",
    shows=["Team capped already uses 4 of the 4", "No GPU (of gpu )?is free", "1 job of 2 that wait"],
    scene="full",
)
def ceiling_turn_and_room(desk: Desk) -> str:
    desk.why(desk.submit("capped", 2), ("TeamAtCeiling", "NotEnoughFree"))
    return desk.submit("capped", 1)


@situation(
    "the team at its ceiling, and no GPU free",
    "TeamAtCeiling",
    "NotEnoughFree",
    shows=["Team capped already uses 4 of the 4", "No GPU (of gpu )?is free"],
    scene="full",
)
def ceiling_and_room(desk: Desk) -> str:
    return desk.submit("capped", 2)


@situation(
    "the job is larger than its team's ceiling",
    "AboveQuota",
    shows=["The job requests 8 GPUs, and team capped may use 4 in gpu at most"],
    scene="idle",
)
def larger_than_ceiling(desk: Desk) -> str:
    return desk.native("capped", 8)


# room


@situation(
    "no GPU is free, and what is held may not be taken back",
    slurm=("NotEnoughFree",),
    kubernetes=("QuotaInUse", "NotEnoughFree"),
    slurm_shows=["No GPU is free, and the job needs 8 on one"],
    kubernetes_shows=["insufficient unused quota", "No GPU (of gpu )?is free"],
    scene="full",
)
def no_gpu_free(desk: Desk) -> str:
    return desk.submit("research", 8)


@situation(
    "GPUs are free, but too few on one node",
    "NotEnoughFree",
    slurm_shows=["16 GPUs free, at most 4 on one node, and the job needs 8 on one"],
    kubernetes_shows=["16 GPUs of gpu are free, on 4 nodes, at most 4 on one; the job needs 8 on one"],
    scene="fragmented",
    resolve=fewer_gpus,
)
def fragmented(desk: Desk) -> str:
    return desk.submit("research", 8)


@situation(
    "a job on three nodes, and two are free",
    slurm=("NotEnoughFree",),
    kubernetes=("QuotaInUse", "NotEnoughFree"),
    shows=["8 on each of 3 nodes"],
    scene="racks",
)
def too_few_nodes_free(desk: Desk) -> str:
    return desk.submit("research", 8, nodes=3)


@situation(
    "two nodes are free, but not in one rack (`together`)",
    "NoRackFits",
    shows=["rack"],
    scene="racks",
    resolve=apart,
)
def no_rack_fits(desk: Desk) -> str:
    return desk.submit("research", 8, nodes=2, together="rack")


@situation(
    "every node is drained",
    "NodesUnavailable",
    shows=[r"drained|cordoned"],
    resolve=repaired,
)
def every_node_drained(desk: Desk) -> str:
    desk.undo.callback(desk.engine.resume, desk.engine.nodes)
    desk.engine.drain(desk.engine.nodes, "cooling repair")
    return desk.submit("research", 1)


@situation(
    "the node that the job names is drained",
    "NodesUnavailable",
    shows=["specific node"],
)
def named_node_drained(desk: Desk) -> str:
    node = desk.engine.nodes[0]
    desk.undo.callback(desk.engine.resume, [node])
    desk.engine.drain([node], "broken fan")
    return desk.native("research", 1, node=node)


@situation(
    "the job requests more GPUs on one node than any node has",
    "NoNodeFits",
    shows=["16"],
    resolve=smaller,
)
def larger_than_any_node(desk: Desk) -> str:
    return desk.native("research", 16)


@situation(
    "the job requests more nodes than the pool has",
    slurm=("NoNodeFits", "AboveQuota"),
    kubernetes=("AboveQuota",),
    slurm_shows=["6 nodes, and only 4"],
    kubernetes_shows=["maximum capacity"],
)
def more_nodes_than_the_pool(desk: Desk) -> str:
    return desk.native("research", 8, nodes=6)


# whose turn it is


@situation(
    "an urgent job is ahead, for which the free nodes are kept",
    "NotItsTurn",
    shows=[r"Ahead in the queue: urgent-job \(\w+\) by alice", "1 job of 2 that wait for gpu, 32 GPUs"],
    scene="racks",
    only=SLURM,
    because="a queue starts whatever fits, also behind a larger job",
)
def urgent_job_ahead(desk: Desk) -> str:
    first = desk.submit("research", 8, nodes=4, priority="urgent", name="urgent-job")
    until(lambda: desk.job(first).state is JobState.WAITING, EXPLAINED_SECONDS, f"{first} waits")
    return desk.submit("research", 8, nodes=2)


@situation(
    "an older, larger job of the team is ahead",
    slurm=("NotItsTurn", "NotEnoughFree"),
    kubernetes=("QuotaInUse", "NotEnoughFree"),
    shows=["1 job of 2 that wait for gpu"],
    scene="racks",
)
def older_larger_job_ahead(desk: Desk) -> str:
    first = desk.submit("research", 8, nodes=3, name="large")
    until(lambda: desk.job(first).state is JobState.WAITING, EXPLAINED_SECONDS, f"{first} waits")
    return desk.submit("research", 8, nodes=3)


# what people do


@situation(
    "on hold by its owner",
    "Held",
    shows=["fairway release"],
    resolve=command(r"fairway release \w+"),
)
def held_by_owner(desk: Desk) -> str:
    return desk.submit("research", 1, hold=True)


@situation(
    "on hold, the team at its ceiling, and no GPU free",
    "Held",
    "TeamAtCeiling",
    "NotEnoughFree",
    shows=["On hold", "Team capped already uses 4 of the 4", "No GPU (of gpu )?is free"],
    scene="full",
)
def held_and_more(desk: Desk) -> str:
    return desk.submit("capped", 2, hold=True)


@situation(
    "after a job of Fairway's that has not ended",
    "AfterAnother",
    shows=[r"The job starts after first \(\w+, on hold\)"],
)
def after_another(desk: Desk) -> str:
    first = desk.submit("research", 1, hold=True, name="first")
    return desk.submit("research", 1, after=[first])


@situation(
    "after another job, and no GPU free",
    "AfterAnother",
    "NotEnoughFree",
    shows=["The job starts after first", "No GPU (of gpu )?is free"],
    scene="full",
)
def after_another_and_room(desk: Desk) -> str:
    first = desk.submit("capped", 1, hold=True, name="first")
    return desk.submit("research", 8, after=[first])


@situation("failed, and waits for its next attempt", "Retry", shows=["retry|attempt"])
def waits_for_its_retry(desk: Desk) -> str:
    more: dict[str, Any] = {"env": {"LAB_EXIT": "3", "LAB_RUN_FOR": "1s"}, "command": ["sh", "-c", "exit 3"]}
    job = desk.submit("research", 1, retries={"count": 2, "first": "10m", "longest": "1h"}, **more)
    until(lambda: desk.job(job).code == "Retry", 90, f"the retry of {job}", why=lambda: desk.job(job))
    return job


# budgets and teams: they change the policy


@situation(
    "the team's budget is spent",
    "BudgetSpent",
    shows=["broke has spent", r"budget\.amount"],
    scene="policy",
    resolve=raise_budget,
)
def budget_spent(desk: Desk) -> str:
    desk.run("broke", 1)
    fleet = desk.fleet()
    fleet["teams"]["broke"]["budget"] = {"amount": 0.01, "every": "month", "at_limit": "stop"}
    desk.undo.callback(desk.apply_own)
    desk.apply(fleet)
    until(lambda: _on_hold(desk), 120, "the team is on hold", pause=0.5)
    return desk.submit("broke", 1)


def _on_hold(desk: Desk) -> bool:
    """Return whether a probe of the team does not start: a budget is spent some seconds before the hold."""
    probe = desk.submit("broke", 1)
    until(lambda: desk.job(probe).engine_id, EXPLAINED_SECONDS, f"{probe} on the engine")
    deadline = Deadline(3)
    while not deadline.passed and desk.job(probe).state is not JobState.RUNNING:
        time.sleep(0.3)
    held = desk.job(probe).state is JobState.WAITING
    desk.cancel(probe)
    return held


@situation(
    "the team is being closed, and at its ceiling",
    "TeamDraining",
    "TeamAtCeiling",
    shows=["being closed", "Team closing already uses 8 of the 8"],
    scene="policy",
    resolve=other_team,
)
def team_draining(desk: Desk) -> str:
    desk.run("closing", 8)
    job = desk.submit("closing", 1)
    desk.why(job, ("TeamAtCeiling",))
    fleet = desk.fleet()
    fleet["teams"]["closing"]["draining"] = True
    desk.undo.callback(desk.apply_own)
    desk.apply(fleet)
    return job


# the engine


@situation(
    "the cluster does not answer, and the job is not sent yet",
    "ClusterAway",
    shows=["unreachable"],
    scene="away",
    resolve=reachable,
)
def cluster_away(desk: Desk) -> str:
    def back() -> None:
        desk.engine.come_back()
        client = desk.line.client("admin")
        until(lambda: client.clusters()[0].reason is None, 120, "the cluster's return", pause=0.5)

    desk.undo.callback(back)
    desk.engine.go_away()
    return desk.submit("research", 1)
