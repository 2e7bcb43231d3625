"""Leaving a Slurm cluster: what is restored, what an administrator removes first, and what release lifts."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fairway.engines.slurm.policy import names, restore
from fairway.engines.slurm.policy.read import CTL
from fairway.policy.objects import FoundObject, FoundPolicy, ObjectKey, SavedObject

LENT = names.qos_key(names.LENT)
GATE = names.qos_key(names.GATE)
PHYSICS = names.account_key("physics")


def settings(*, gated: bool) -> dict[str, str]:
    return {
        "partition/gpu/Nodes": "n[1-4]",
        "partition/gpu/QOS": names.GATE if gated else "",
        "partition/gpu-lent/Nodes": "n[1-4]",
        "partition/cpu/Nodes": "n[5-6]",
    }


def account(**fields: Any) -> FoundObject:
    return FoundObject(PHYSICS, {"Fairshare": 5, **fields}, ours=True)


def record(qos: list[str], shares: int = 40) -> dict[str, Any]:
    association = {"account": "physics", "user": "", "qos": qos, "shares_raw": shares}
    return {"association": association, "account": {"description": "physics", "organization": "physics"}}


def test_an_account_gets_back_everything_it_had() -> None:
    saved = SavedObject(PHYSICS, {"Fairshare": 40}, record(["normal"]))
    now = {PHYSICS: record(["fairway.lent", "normal"], 5)}
    leaving = restore.leaving("hpc", FoundPolicy("slurm", (account(),), {}), [saved], now)
    (change,) = leaving.restored
    assert change.record == record(["normal"])
    again = restore.leaving("hpc", FoundPolicy("slurm", (), {}), [saved], {PHYSICS: record(["normal"])})
    assert again.restored == ()


def test_while_the_files_are_installed_leaving_is_refused_and_the_lines_are_named() -> None:
    found = FoundPolicy("slurm", (FoundObject(GATE, {}, ours=True),), settings(gated=True))
    leaving = restore.leaving("hpc", found, [SavedObject(GATE, {}, None)], {})
    assert [o.code for o in leaving.objections] == ["FilesInstalled"]
    assert leaving.needed[GATE] == "partition gpu names it"
    assert [a.file for a in leaving.advice] == ["slurm.conf", "job_submit.lua", "fairway.conf"]
    assert leaving.advice[-1].line == "PartitionName=gpu-lent"


def test_a_qos_that_a_partition_allows_stays_because_slurmctld_would_not_start_without_it() -> None:
    allows = settings(gated=False) | {"partition/gpu-lent/AllowQos": f"normal,{names.LENT}"}
    found = FoundPolicy("slurm", (FoundObject(LENT, {}, ours=True),), allows)
    leaving = restore.leaving("hpc", found, [SavedObject(LENT, {}, None)], {})
    assert leaving.needed[LENT] == "partition gpu-lent names it"


def test_without_the_files_only_the_empty_twins_are_left_to_remove() -> None:
    leaving = restore.leaving("hpc", FoundPolicy("slurm", (), settings(gated=False)), [], {})
    assert leaving.objections == ()
    assert [a.line for a in leaving.advice] == ["PartitionName=gpu-lent"]


def test_a_user_whom_people_put_into_another_account_stays() -> None:
    dora = ObjectKey("user", "dora")
    objects = (
        FoundObject(ObjectKey("association", "physics/dora"), {}, ours=True),
        FoundObject(ObjectKey("association", "biology/dora"), {}, ours=False),
    )
    saved = [SavedObject(ObjectKey("association", "physics/dora"), {}, None), SavedObject(dora, {}, None)]
    assert restore.leaving("hpc", FoundPolicy("slurm", objects, {}), saved, {}).needed == {
        dora: "it is in account biology"
    }


def test_release_opens_the_gate_and_ends_holds_but_keeps_ceilings() -> None:
    gate = FoundObject(GATE, {"MaxJobsPerAccount": 0, "Priority": 1}, ours=True)
    written = (names.LENT, "normal")
    held = account(GrpJobs=0, MaxJobs=0, QOS=written, **{"GrpTRES.gres/gpu:a100": 0})
    foreign = FoundObject(names.account_key("biology"), {"GrpJobs": 0}, ours=False)
    changes = restore.guards(FoundPolicy("slurm", (gate, held, foreign), {}))
    assert {c.key: c.wanted for c in changes} == {
        GATE: {"Priority": 1},
        PHYSICS: {"Fairshare": 5, "QOS": written, "GrpTRES.gres/gpu:a100": 0},
    }


def test_release_gives_back_the_sites_own_numbers_of_jobs() -> None:
    held = account(GrpJobs=0, MaxJobs=0, GrpSubmit=0, QOS=(names.LENT,))
    remembered = {"GrpJobs": 20, "GrpSubmit": 0}
    memory = FoundObject(names.qos_key(names.site_limits_qos("physics")), remembered, ours=True)
    (change,) = restore.guards(FoundPolicy("slurm", (held, memory), {}))
    assert change.wanted == {"Fairshare": 5, "QOS": (names.LENT,), "GrpJobs": 20, "GrpSubmit": 0}


def test_a_qos_loses_the_limits_that_it_did_not_have() -> None:
    had = {"limits": {"max": {"tres": {"total": [{"type": "cpu", "name": "", "count": 8}]}}}}
    now = {"limits": {"max": {"tres": {"total": [{"type": "gres", "name": "gpu", "count": 2}]}}}}
    total = restore._clear_tres(had, now)["limits"]["max"]["tres"]["total"]
    assert total == [{"type": "cpu", "name": "", "count": 8}, {"type": "gres", "name": "gpu", "count": -1}]


class Recorder:
    """A slurmrestd that has these accounts, and keeps what it is asked."""

    def __init__(self, *accounts: dict[str, object]) -> None:
        self.accounts = list(accounts)
        self.asked: list[str] = []

    async def request(self, method: str, path: str, body: object = None) -> dict[str, object]:
        self.asked.append(f"{method} {path.partition('?')[0]}")
        return {"associations": self.accounts}


@pytest.mark.parametrize(("own", "again"), [((), True), (("normal",), False)])
async def test_slurmctld_reads_the_accounting_again_where_an_account_inherits_its_qos_too(
    own: tuple[str, ...], again: bool
) -> None:
    rest = Recorder({"account": "ops", "user": "", "qos": list(own)})
    user = {"account": "ops", "user": "carol", "qos": [], "parent_account": ""}
    await restore._inherit_qos(cast("Any", rest), "lab", [user])
    assert (rest.asked[-1] == f"GET {CTL}/reconfigure/") is again
