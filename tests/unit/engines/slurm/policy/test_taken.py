"""What a policy takes from a Slurm site, and who used it as slurmdbd sums it up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairway.engines.slurm.policy import names, taken
from fairway.engines.slurm.policy.translate import PolicyContext
from fairway.model.fleet import ExistingWorkloads, SlurmConnection
from fairway.model.names import TeamName
from fairway.policy.objects import Action, Change, FoundObject, ObjectKey
from fairway.policy.recent_use import RecentUse
from tests.unit.engines.slurm.policy.made import ground

COUNTED = {"partition/gpu/TRES": "cpu=8,gres/gpu=8,gres/gpu:a100=8"}
SITE = {f"{names.SITE_ACCOUNT}{name}": "normal" for name in ("physics", "chem", "product")}


def context(**settings: str) -> PolicyContext:
    return ground(settings={**COUNTED, **SITE, **settings})


def connection(existing: ExistingWorkloads) -> SlurmConnection:
    return SlurmConnection("http://127.0.0.1:6820", existing_workloads=existing)


def record(account: str, user: str, *used: tuple[str, int], kind: str = "gres") -> dict[str, Any]:
    rows = [{"TRES": {"type": kind, "name": name}, "allocated": {"seconds": n}} for name, n in used]
    return {"account": account, "user": user, "accounting": rows}


def test_accounts_of_no_team_lose_gpu_jobs_only_if_the_file_says_so() -> None:
    refused = taken.find_losses(context(), connection(ExistingWorkloads.REFUSE), (), ())
    assert [loss.account for loss in refused] == ["chem", "physics"]
    assert taken.find_losses(context(), connection(ExistingWorkloads.LEAVE), (), ()) == ()


def test_a_deleted_user_is_named_once_and_not_with_a_deleted_account() -> None:
    gone = ["account/old", "association/old/eve", "association/nlp/dan", "association/nlp/dan/short"]
    keys = [ObjectKey(*key.split("/", 1)) for key in gone]
    changes = [Change(Action.DELETE, key, team=TeamName("nlp")) for key in keys]
    losses = taken.find_losses(context(), connection(ExistingWorkloads.LEAVE), (), changes)
    assert [loss.what for loss in losses] == ["jobs in account old", "jobs of dan in account nlp"]


def test_a_team_without_a_grant_loses_a_pool_until_its_account_is_written() -> None:
    account = FoundObject(names.account_key("nlp"), {"QOS": ("normal",)}, ours=True)
    losses = taken.find_losses(context(), connection(ExistingWorkloads.LEAVE), (account,), ())
    assert {(loss.tres, loss.team) for loss in losses} == {
        ("gres/gpu:1g.10gb", "nlp"),
        ("gres/gpu:3g.40gb", "nlp"),
    }
    assert all(loss.what.startswith("mig/") for loss in losses)
    written = replace(account, fields={"QOS": ("normal", names.LENT)})
    assert taken.find_losses(context(), connection(ExistingWorkloads.LEAVE), (written,), ()) == ()


def test_use_is_summed_by_user_and_resource_without_the_accounts_own_sums() -> None:
    use = taken.sum_use(
        [
            record("physics", "", ("gpu", 999)),
            record("physics", "alice", ("gpu", 7200), ("gpu:a100", 7200), ("gpumem", 5)),
            record("physics", "alice", ("gpu", 3600)),
            record("physics", "bob", ("", 50), kind="cpu"),
        ]
    )
    assert use == {("physics", "alice", "gres/gpu"): 10_800, ("physics", "alice", "gres/gpu:a100"): 7200}


def test_what_was_used_has_a_line_and_the_rest_shares_one() -> None:
    losses = taken.find_losses(
        context(**{f"{names.SITE_ACCOUNT}quiet": ""}), connection(ExistingWorkloads.REFUSE), (), ()
    )
    use = {("chem", "carol", "gres/gpu"): 36_000}
    first, rest = taken.taken_away(losses, use)
    assert first.what == "GPU jobs of account chem, which is no team"
    assert first.used == RecentUse((("carol", 10.0),), gpu_hours=10.0)
    assert rest.what == "GPU jobs of accounts physics, quiet, which are no teams"
    assert rest.used == RecentUse()


def test_what_is_not_known_says_why() -> None:
    refusing = connection(ExistingWorkloads.REFUSE)
    losses = taken.find_losses(context(), refusing, (), ())
    (away,) = taken.taken_away(losses, {}, unknown="slurmdbd did not answer")
    assert away.used == RecentUse(unknown="slurmdbd did not answer")
    uncounted = taken.find_losses(ground(settings=SITE), refusing, (), ())
    assert {loss.unknown for loss in uncounted} == {
        "Slurm counts no GPUs: AccountingStorageTRES has no gres/gpu"
    }


def test_many_that_were_used_are_bounded() -> None:
    sites = {f"{names.SITE_ACCOUNT}a{n:03}": "" for n in range(300)}
    losses = taken.find_losses(context(**sites), connection(ExistingWorkloads.REFUSE), (), ())
    use = {(f"a{n:03}", f"u{n:03}", "gres/gpu"): 3600 * (n + 1) for n in range(300)}
    away = taken.taken_away(losses, use)
    assert len(away) == taken.MAX_LISTED + 1
    assert away[-1].used.more == 300 - taken.MAX_LISTED - len(away[-1].used.users)
