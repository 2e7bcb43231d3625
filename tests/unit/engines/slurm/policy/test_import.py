"""An existing cluster's accounts and limits as a fleet."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from fairway.engines.port import Governs, ImportedPolicy, Imports, Intervenes, Observes
from fairway.engines.slurm import SlurmEngine
from fairway.engines.slurm.policy.import_ import import_policy
from fairway.engines.slurm.policy.translate import wanted_objects
from fairway.files import parse_fleet
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import Capacity, SlurmPlace
from fairway.model.names import ClusterName, UserName
from fairway.model.team import Grant, Supply
from fairway.policy.objects import FoundObject, FoundPolicy, ObjectKey, Value
from tests.unit.engines.slurm.policy.made import fleet, ground

SETTINGS = {
    "nodes/batch,debug": "node=4,gres/gpu=32,gres/gpu:h100=32",
    "nodes/Spot_1": "node=2,gres/gpu=16,gres/gpu:l4=16",
    "nodes/cpu": "node=9",
    "partition/batch/Nodes": "n[1-4]",
    "partition/batch/TRES": "cpu=256,gres/gpu=32,gres/gpu:h100=32",
    "partition/debug/Nodes": "n[1-4]",
    "partition/debug/TRES": "cpu=256,gres/gpu=32,gres/gpu:h100=32",
    "partition/Spot_1/Nodes": "s[1-2]",
    "partition/Spot_1/TRES": "cpu=64,gres/gpu=16,gres/gpu:l4=16",
    "partition/cpu/Nodes": "c[1-9]",
    "partition/cpu/TRES": "cpu=256",
    "PriorityDecayHalfLife": "2-00:00:00",
    "default-account/alice": "physics",
}


def account(name: str, fields: dict[str, Value] | None = None, parent: str = "root") -> FoundObject:
    said = {"Parent": parent, "Fairshare": 1, **(fields or {})}
    return FoundObject(ObjectKey("account", name), said, ours=False)


def person(account: str, user: str, fields: dict[str, Value] | None = None) -> FoundObject:
    said = {"Fairshare": 1, **(fields or {})}
    return FoundObject(ObjectKey("association", f"{account}/{user}"), said, ours=False)


def imported(*objects: FoundObject) -> ImportedPolicy:
    bare = replace(fleet(""), pools=())
    return import_policy(bare, ClusterName("hpc"), FoundPolicy("slurm 24.11.5", objects, SETTINGS))


H100 = "GrpTRES.gres/gpu:h100"


def test_partitions_with_gpus_are_pools() -> None:
    pools = {str(p.name): p for p in imported().fleet.pools}
    assert pools.keys() == {"batch", "p-spot-1"}
    assert pools["batch"].gpu.name.startswith("H100")
    assert (pools["p-spot-1"].gpu.name, pools["batch"].capacity) == ("L4", Capacity.OWNED)
    assert {p.price for p in pools.values()} == {Decimal(0)}
    assert pools["batch"].place == SlurmPlace("batch", "h100", ("debug",))
    assert {p.capacity for p in pools.values()} == {Capacity.OWNED}  # a name alone makes nothing spot
    about = {r.about for r in imported().remarks}
    assert {"pool batch", "pool p-spot-1", "partition cpu"} <= about


def test_limits_that_fit_together_are_guarantees() -> None:
    done = imported(
        account("physics", {H100: 20, "GrpTRES.gres/gpu:l4": 0, "MaxWall": 60}),
        account("biology", {H100: 8}, "physics"),
        account("chemistry", {H100: 12, "GrpTRES.gres/gpu:l4": 4}),
        person("physics", "alice"),
        person("biology", "alice"),
        person("chemistry", "bob", {H100: 3}),
    )
    teams = {str(t.name): t for t in done.fleet.teams}
    batch, spot = Supply(done.fleet.pools[0].name), Supply(done.fleet.pools[1].name)
    assert teams["physics"].grants == (Grant(batch, 20, 0),)
    assert teams["biology"].grants == (Grant(batch, 8, 0),)
    assert teams["chemistry"].grants == (Grant(batch, 12, 0), Grant(spot, 4, 0))
    assert (teams["biology"].parent, teams["biology"].limits.job_seconds) == ("physics", 3600)
    # bob's limit is on one type alone: a limit of every user on every pool would take L4 from him
    assert teams["chemistry"].limits.user_gpus is None
    said = {r.about: r.text for r in done.remarks}
    assert said["user bob, team chemistry"].startswith("GrpTRES=gres/gpu:h100=3 ")
    assert done.fleet.chosen_teams == {UserName("alice"): "physics"}
    assert done.fleet.fairness.half_life_seconds == 2 * 86_400
    text = compose_fleet(done.fleet, [(r.about, r.text) for r in done.remarks])
    assert parse_fleet(text, "imported.yaml") == done.fleet


def test_limits_that_do_not_are_ceilings() -> None:
    over = imported(account("a", {H100: 20}), account("b", {H100: 20}), person("a", "x"), person("b", "y"))
    assert [t.grants[0] for t in over.fleet.teams] == [
        Grant(Supply(over.fleet.pools[0].name), 0, 20),
        Grant(Supply(over.fleet.pools[0].name), 0, 20),
    ]
    open_ended = imported(account("a", {H100: 8}), account("b"), person("a", "x"), person("b", "y"))
    assert [t.grants[0].ceiling for t in open_ended.fleet.teams] == [8, None]
    assert [t.grants[0].guarantee for t in open_ended.fleet.teams] == [0, 0]


def test_what_has_no_word_gets_a_remark() -> None:
    done = imported(
        account("a", {"GrpTRES.cpu": 64, "MaxJobs": 5}),
        account("B_team"),
        account("inside", {}, "B_team"),
        person("a", "x", {"Priority": 7}),
        FoundObject(ObjectKey("qos", "fast"), {"Priority": 100}, ours=False),
        FoundObject(ObjectKey("qos", "normal"), {}, ours=False),
    )
    assert [(t.name, t.account_name, t.parent) for t in done.fleet.teams] == [
        ("a", "a", None),
        ("b-team", "B_team", None),
        ("inside", "inside", "b-team"),
    ]
    said = {f"{r.about}: {r.text}" for r in done.remarks}
    for word in (
        "account a: GrpTRES=cpu=64 MaxJobs=5",
        "user x, team a: Priority=7",
        "qos fast",
    ):
        assert any(word in text for text in said), word
    assert not any("qos normal" in text for text in said)


def test_a_cluster_under_fairway_reads_as_its_own_fleet() -> None:
    objects = tuple(
        FoundObject(o.key, {k: v for k, v in o.fields.items() if v is not None}, ours=not o.shared)
        for o in wanted_objects(ground())
    )
    settings = {
        "partition/gpu/TRES": "gres/gpu=32,gres/gpu:a100=32",
        "partition/gpu/Nodes": "a",
        "partition/mig/TRES": "gres/gpu=6,gres/gpu:1g.10gb=4,gres/gpu:3g.40gb=2",
        "partition/mig/Nodes": "b",
        "nodes/gpu,gpu-lent": "node=4,gres/gpu=32,gres/gpu:a100=32",
        "nodes/mig,mig-lent": "node=1,gres/gpu=6,gres/gpu:1g.10gb=4,gres/gpu:3g.40gb=2",
    }
    found = FoundPolicy("slurm 26.05.5", objects, settings)
    back = import_policy(replace(fleet(), teams=()), ClusterName("hpc"), found).fleet
    again = {t.name: t for t in back.teams}
    for team in fleet().teams:
        assert again[team.name].grants == team.grants, team.name
        assert (again[team.name].share, again[team.name].members) == (team.share, team.members)
        if team.members:  # a limit of each user's is kept with the users
            assert again[team.name].limits == team.limits


def _keeps(engine: SlurmEngine) -> tuple[Observes, Governs, Intervenes, Imports]:
    """mypy checks it: the engine satisfies every protocol."""
    return engine, engine, engine, engine


def test_the_engine_keeps_every_protocol() -> None:
    here = fleet()
    engine = SlurmEngine(here.clusters[0], here.pools)
    assert _keeps(engine) == (engine, engine, engine, engine)


def test_users_of_the_system_are_no_members() -> None:
    done = imported(account("a"), person("a", "root"), person("a", "x"), person("a", "fairway"))
    assert done.fleet.teams[0].members == ("x",)
    about = {r.about: r.text for r in done.remarks}
    assert "stays as it is" in about["users root, fairway, team a"]
    assert parse_fleet(compose_fleet(done.fleet, []), "imported.yaml") == done.fleet
