"""What a site has set on its accounts stays: QOS, defaults and limits that no fleet can express."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.advice import notices
from fairway.engines.slurm.policy.site_fields import SiteFields
from fairway.engines.slurm.policy.translate import PolicyContext, wanted_objects
from fairway.model.budget import Hold
from fairway.policy.objects import FoundObject, FoundPolicy, ObjectKey, Translation, Value, WantedObject
from fairway.policy.plan import compute_changes
from tests.unit.engines.slurm.policy.made import by_name, ground

TEAMS = """
teams:
  vision: { share: 50, guarantee: { gpu: 8 }, members: [alice, bob] }
"""
ROOT = {names.ROOT_QOS: "normal"}


def qos(name: str, *, ours: bool = False) -> FoundObject:
    return FoundObject(ObjectKey("qos", name), {}, ours)


def found(kind: str, name: str, /, *, created: bool = False, **fields: Value) -> FoundObject:
    dotted = {field.replace("__", "."): value for field, value in fields.items()}
    return FoundObject(ObjectKey(kind, name), dotted, ours=True, created=created)


SITE = (qos("normal"), qos("debug"), qos("long"), qos("fairway.lent", ours=True), qos("gone.own", ours=True))


def wanted(*objects: FoundObject, teams: str = TEAMS) -> dict[str, dict[str, Value]]:
    return by_name(wanted_objects(ground(teams, settings=ROOT), (*SITE, *objects)))


def test_the_sites_qos_stay_beside_ours_and_those_of_a_former_team_go() -> None:
    account = found("account", "vision", Parent="root", QOS=("debug", "fairway.lent", "gone.own", "normal"))
    objects = wanted(account, found("association", "vision/alice"))
    ours = ("fairway.lent", "fairway.low", "fairway.urgent", "vision.gpu.own")
    assert objects["account vision"]["QOS"] == tuple(sorted(("debug", "normal", *ours)))
    assert objects["association vision/alice"]["QOS"] == objects["account vision"]["QOS"]  # as it inherits
    assert objects["association vision/bob"]["QOS"] == objects["account vision"]["QOS"]  # a new member


def test_an_account_without_a_list_keeps_what_it_inherits_from_root() -> None:
    objects = wanted(found("account", "vision", Parent="root"))
    assert "normal" in str(objects["account vision"]["QOS"])


def test_the_only_qos_of_an_account_stays_its_default() -> None:
    """Slurm takes it for jobs that name none, but only while it is the only one."""
    objects = wanted(found("account", "vision", Parent="root", QOS=("long",)))
    assert objects["account vision"]["DefaultQOS"] == "long"
    for several in (("long", "normal"), ("normal",)):
        objects = wanted(found("account", "vision", Parent="root", QOS=several))
        assert "DefaultQOS" not in objects["account vision"]


def test_what_a_fleet_cannot_say_is_neither_unset_nor_drift() -> None:
    account = found(
        "account",
        "vision",
        Parent="root",
        Fairshare=50,
        QOS=("normal",),
        DefaultQOS="normal",
        MaxJobs=20,
        GrpTRES__cpu=96,
        GrpTRESMins__gres_gpu=600,
    )
    user = found("association", "vision/alice", Fairshare=5, MaxSubmit=100, MaxWall=60)
    context = ground(TEAMS, settings=ROOT)
    objects = (*SITE, account, user)
    changes = compute_changes(Translation(wanted_objects(context, objects)), FoundPolicy("s", objects, ROOT))
    fields = {f.field: f for c in changes if c.key.name in ("vision", "vision/alice") for f in c.fields}
    assert fields.keys() == {"QOS", "GrpTRES.gres/gpu:1g.10gb", "GrpTRES.gres/gpu:3g.40gb"}  # mig: no grant
    assert not [f for f in fields.values() if f.after is None]


def test_a_limit_of_one_user_stays_and_that_of_all_members_is_the_fleets() -> None:
    account = found("account", "vision", Parent="root")
    one = (
        replace(found("association", "vision/alice"), fields={"GrpTRES.gres/gpu:a100": 6}),
        found("association", "vision/bob"),
    )
    objects = wanted(account, *one)
    assert objects["association vision/alice"]["GrpTRES.gres/gpu:a100"] == 6
    both = [replace(one[0], key=ObjectKey("association", f"vision/{user}")) for user in ("alice", "bob")]
    objects = wanted(account, *both)
    assert "GrpTRES.gres/gpu:a100" not in objects["association vision/alice"]


def test_what_a_default_qos_lets_a_user_have_is_still_the_limit() -> None:
    teaching = FoundObject(ObjectKey("qos", "teaching"), {"MaxTRESPerUser.gres/gpu": 1}, ours=False)
    account = found("account", "vision", Parent="root", QOS=("teaching",))
    objects = wanted(teaching, account, found("association", "vision/alice"))
    assert objects["association vision/alice"]["GrpTRES.gres/gpu:a100"] == 1
    assert objects["association vision/bob"]["GrpTRES.gres/gpu:a100"] == 1
    limited = TEAMS.replace("share: 50,", "share: 50, limits: { user: { gpus: 4 } },")
    objects = wanted(teaching, account, found("association", "vision/alice"), teams=limited)
    assert objects["association vision/alice"]["GrpTRES.gres/gpu:a100"] == 4  # the fleet says so


def test_what_the_qos_of_a_partition_lets_a_user_have_is_not_counted_twice() -> None:
    """The gate and the second partition have that limit too, and each counts for itself."""
    limit = FoundObject(ObjectKey("qos", "gpupart"), {"MaxTRESPerUser.gres/gpu": 4}, ours=False)
    objects = (*SITE, limit, found("account", "vision", Parent="root"), found("association", "vision/alice"))
    with_qos = ground(TEAMS, settings={**ROOT, "partition/gpu/QOS": "gpupart"})
    assert (
        by_name(wanted_objects(with_qos, objects))["association vision/alice"]["GrpTRES.gres/gpu:a100"] == 4
    )
    without = by_name(wanted_objects(ground(TEAMS, settings=ROOT), objects))
    assert "GrpTRES.gres/gpu:a100" not in without["association vision/alice"]


def test_an_account_stays_inside_one_that_is_no_team() -> None:
    science = found("account", "Science", Parent="root", QOS=("debug",))
    objects = wanted(science, found("account", "vision", Parent="Science"))
    assert objects["account vision"]["Parent"] == "Science"
    assert "debug" in str(objects["account vision"]["QOS"])


def test_an_association_of_one_partition_stays() -> None:
    account = found("account", "vision", Parent="root", QOS=("normal",))
    single = found("association", "vision/alice/gpu", MaxJobs=3)
    objects = wanted(account, found("association", "vision/alice"), single)
    assert objects["association vision/alice/gpu"]["MaxJobs"] == 3


def test_on_an_account_that_fairway_made_any_other_value_is_drift() -> None:
    account = found("account", "vision", created=True, Parent="root", QOS=("normal",), MaxSubmit=9)
    objects = wanted(account)
    assert "normal" not in str(objects["account vision"]["QOS"])
    assert "MaxSubmit" not in objects["account vision"]


def test_an_adopted_account_is_told_from_one_that_fairway_made() -> None:
    for description in ("chemistry", ""):
        mark = names.adopted_mark(description)
        assert names.is_marked(mark)
        assert not names.is_created(mark)
    assert names.is_created(names.mark(None))


def test_limits_of_users_that_two_partitions_have_now_are_named() -> None:
    limits = {"MaxTRESPerUser.gres/gpu": 4, "MaxJobsPerUser": 10, "Priority": 9}
    gpupart = FoundObject(ObjectKey("qos", "gpupart"), limits, ours=False)
    settings = {**SiteFields.of((gpupart,), ROOT).settings(), "partition/gpu/QOS": "gpupart"}
    here = [n for n in notices(ground(TEAMS, settings=settings)) if n.code == "PartitionLimitsOfUsers"]
    (notice,) = here
    assert "MaxJobsPerUser=10 counts in each of gpu and gpu-lent" in notice.message
    assert not [n for n in notices(ground(TEAMS, settings=ROOT)) if n.code == "PartitionLimitsOfUsers"]


def test_limits_of_a_qos_that_do_not_count_any_more_are_named() -> None:
    debug = FoundObject(
        ObjectKey("qos", "debug"), {"MaxJobsPerUser": 1, "MaxWall": 30, "Priority": 9}, ours=False
    )
    account = found("account", "vision", Parent="root", QOS=("debug", "normal"))
    settings = SiteFields.of((qos("normal"), debug, account), ROOT).settings()
    named = [n for n in notices(ground(TEAMS, settings=settings)) if n.code == "SiteQosLimits"]
    assert "debug (MaxJobsPerUser=1)" in named[0].message


def test_a_limit_on_all_gpus_stays_until_slurm_counts_them_by_type() -> None:
    limits: dict[str, Value] = {"Parent": "root", "GrpTRES.gres/gpu": 16}
    account = FoundObject(ObjectKey("account", "vision"), limits, ours=True)
    limited = "teams:\n  vision: { borrow: { gpu: 16 }, members: [alice] }\n"
    untyped = {**ROOT, "partition/gpu/TRES": "cpu=96,gres/gpu=24"}
    here = ground(limited, settings=untyped)
    fields = by_name(wanted_objects(here, (*SITE, account)))["account vision"]
    assert fields["GrpTRES.gres/gpu"] == 16
    assert "GrpTRES.gres/gpu:a100" not in fields
    assert "TypeNotTracked" in {n.code for n in notices(here)}


@pytest.mark.parametrize(("most", "kept"), [(16, 16), (24, None), (None, None)])
def test_a_limit_on_all_gpus_stays_until_the_fleet_file_says_something_else(
    most: int | None, kept: int | None
) -> None:
    key = names.account_key("physics")
    found = FoundObject(key, {"Parent": "root", "GrpTRES.gres/gpu": 16}, ours=True)
    limits = {f"GrpTRES.gres/gpu:{kind}": most for kind in ("a100", "1g.10gb") if most is not None}
    wanted = WantedObject(key, {"Parent": "root", "Fairshare": 1, "QOS": (), **limits})
    (account,) = SiteFields.of([found], {}).keep([wanted], {"gres/gpu:a100", "gres/gpu:1g.10gb"})
    assert account.fields.get("GrpTRES.gres/gpu") == kept


BUDGET = TEAMS.replace("share: 50", "share: 50, budget: { amount: 100, every: month, at_limit: stop }")
MEMORY = f"qos {names.site_limits_qos('vision')}"
WRITTEN = ("fairway.lent", "normal")


def held(*objects: FoundObject, hold: Hold | None) -> dict[str, dict[str, Value]]:
    context = ground(BUDGET, settings=ROOT)
    fleet = replace(context.fleet, teams=tuple(replace(t, hold=hold) for t in context.fleet.teams))
    return by_name(wanted_objects(PolicyContext.of(fleet, "hpc", ROOT), (*SITE, *objects)))


def test_the_sites_number_of_jobs_comes_back_after_a_hold() -> None:
    free = found("account", "vision", Parent="root", QOS=WRITTEN, GrpJobs=20)
    objects = held(free, hold=None)
    assert objects["account vision"]["GrpJobs"] == 20
    assert objects[MEMORY] == {"GrpJobs": 20}  # before the first hold: that writes no new objects

    memory = found("qos", names.site_limits_qos("vision"), GrpJobs=20)
    objects = held(free, memory, hold=Hold.STOP)
    assert objects["account vision"]["GrpJobs"] == 0
    assert objects[MEMORY] == {"GrpJobs": 20}

    stopped = found("account", "vision", Parent="root", QOS=WRITTEN, GrpJobs=0, MaxJobs=0)
    assert held(stopped, memory, hold=Hold.STOP)[MEMORY] == {"GrpJobs": 20}
    after = held(stopped, memory, hold=None)["account vision"]
    assert after["GrpJobs"] == 20
    assert "MaxJobs" not in after  # the site had none


def test_what_the_site_changes_itself_counts() -> None:
    memory = found("qos", names.site_limits_qos("vision"), GrpJobs=20)
    for now in (30, None):
        account = found("account", "vision", Parent="root", QOS=WRITTEN, GrpJobs=now)
        assert held(account, memory, hold=None)["account vision"].get("GrpJobs") == now


def test_an_account_or_user_that_the_site_has_stopped_stays_so() -> None:
    account = found("account", "vision", Parent="root", QOS=("normal",), GrpJobs=0)
    objects = wanted(account, found("association", "vision/alice", MaxJobs=0))
    assert objects["account vision"]["GrpJobs"] == 0
    assert objects["association vision/alice"]["MaxJobs"] == 0
    written = found("account", "vision", Parent="root", QOS=WRITTEN, GrpJobs=0)
    memory = found("qos", names.site_limits_qos("vision"), GrpJobs=0)
    assert wanted(written, memory)["account vision"]["GrpJobs"] == 0


def test_what_import_calls_draining_is_the_fleets_to_lift() -> None:
    account = found("account", "vision", Parent="root", QOS=("normal",), GrpJobs=0, GrpSubmit=0)
    assert "GrpJobs" not in wanted(account)["account vision"]
    assert MEMORY not in wanted(account)


def test_without_a_budget_nothing_has_to_be_remembered() -> None:
    assert MEMORY not in wanted(found("account", "vision", Parent="root", QOS=WRITTEN, GrpJobs=20))
