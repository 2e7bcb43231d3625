"""What a fleet means in Slurm's accounting."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.advice import notices
from fairway.engines.slurm.policy.translate import ANY_NUMBER_OF_JOBS, PolicyContext, wanted_objects
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, SlurmConnection, SlurmPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName
from fairway.model.team import Supply
from fairway.policy.objects import FoundPolicy, Translation
from fairway.policy.plan import compute_changes
from tests.strategies.fleets import fleets
from tests.tier import examples
from tests.unit.engines.slurm.policy.made import TEAMS, by_name, fleet, ground

GPU = Supply(PoolName("gpu"))


def test_a_guarantee_is_a_qos_without_what_is_promised_on() -> None:
    objects = by_name(wanted_objects(ground()))
    assert objects["qos nlp.gpu.own"]["GrpTRES.gres/gpu"] == 8
    assert objects["qos research.gpu.own"]["GrpTRES.gres/gpu"] == 8
    assert objects["qos product.gpu.own"]["GrpTRES.gres/gpu"] == 16
    assert objects["qos product.mig.1g.10gb.own"]["GrpTRES.gres/gpu"] == 4
    assert "qos vision.gpu.own" not in objects
    assert "qos product.mig.3g.40gb.own" not in objects


def test_a_guarantee_takes_back_what_is_lent_and_passes_the_gate() -> None:
    objects = by_name(wanted_objects(ground()))
    own = objects["qos product.gpu.own"]
    assert own["Preempt"] == (names.LENT, names.LOW, "research.gpu.kin")
    assert (own["Flags"], own["MaxJobsPerAccount"]) == (("OverPartQOS",), ANY_NUMBER_OF_JOBS)
    assert objects[f"qos {names.GATE}"] == {"MaxJobsPerAccount": 0}
    for shared in (names.LENT, names.LOW, names.WAITING_URGENT):
        assert "OverPartQOS" not in str(objects[f"qos {shared}"].get("Flags"))
    assert objects["qos product.mig.1g.10gb.own"]["Preempt"] == (names.LENT, names.LOW)


def test_the_nearer_guarantee_is_tried_first() -> None:
    objects = by_name(wanted_objects(ground()))
    order = ["nlp.gpu.own", "research.gpu.own", "research.gpu.kin", names.LENT, names.LOW]
    ranks = [objects[f"qos {name}"]["Priority"] for name in order]
    assert ranks == sorted(ranks, key=lambda rank: -int(str(rank)))
    assert len(set(ranks)) == len(ranks)


def test_a_ceiling_is_on_the_account_by_type_and_none_is_nothing() -> None:
    objects = by_name(wanted_objects(ground()))
    research = objects["account research"]
    assert research["GrpTRES.gres/gpu:a100"] == 32
    assert research["GrpTRES.gres/gpu:1g.10gb"] == 0  # no grant
    assert research["MaxTRESPerJob.gres/gpu:a100"] == 24
    assert research["MaxWall"] == 72 * 60
    assert "GrpTRES.gres/gpu:a100" not in objects["account nlp"]  # whatever its parent may hold
    assert objects["account product"]["GrpTRES.gres/gpu:a100"] == 16
    assert "GrpTRES.gres/gpu:1g.10gb" not in objects["account product"]
    assert not any(
        field == "GrpTRES.gres/gpu" for name, f in objects.items() for field in f if "account" in name
    )


def test_an_account_lists_what_its_jobs_may_run_as() -> None:
    objects = by_name(wanted_objects(ground()))
    assert objects["account vision"]["QOS"] == tuple(
        sorted((names.LENT, names.LOW, names.WAITING_URGENT, "research.gpu.kin", "research.gpu.own"))
    )
    assert names.LOW not in str(objects["account product"]["QOS"])
    assert objects["association nlp/alice"]["GrpTRES.gres/gpu:a100"] == 20
    assert objects["association product/bob"]["QOS"] == objects["account product"]["QOS"]


def test_what_is_needed_first_is_written_first() -> None:
    wanted = Translation(wanted_objects(ground()))
    stages = {str(c.key): c.stage for c in compute_changes(wanted, FoundPolicy("slurm", (), {}))}
    for o in wanted.objects:
        for before in o.after:
            assert stages[str(before)] < stages[str(o.key)]


def test_draining_lets_nothing_start() -> None:
    objects = by_name(wanted_objects(ground(TEAMS.replace("share: 40", "share: 40\n    draining: true"))))
    assert (objects["account product"]["GrpJobs"], objects["account product"]["GrpSubmit"]) == (0, 0)
    assert "GrpJobs" not in objects["account research"]


def test_without_children_to_leave_anything_there_is_no_kin() -> None:
    alone = """
teams:
  research:
    guarantee: { gpu: 16 }
    teams:
      nlp: { guarantee: { gpu: 8 }, members: [alice] }
"""
    assert not [o for o in wanted_objects(ground(alone)) if o.key.name.endswith(".kin")]


def test_a_team_of_another_cluster_is_not_here() -> None:
    here = PolicyContext.of(replace(fleet(), pools=fleet().pools[1:]), "hpc", {})
    assert [t.name for t in here.teams] == ["product"]
    accounts = [o.key.name for o in wanted_objects(here) if o.key.kind == "account"]
    assert accounts == ["product"]


def test_pools_of_one_type_share_a_ceiling_and_a_notice_says_so() -> None:
    teams = "teams:\n  ops: { borrow: { gpu: 8, spot: 4 }, members: [alice] }\n"
    here = ground(teams, spot=True)
    assert by_name(wanted_objects(here))["account ops"]["GrpTRES.gres/gpu:a100"] == 12
    assert "PoolsShareType" in {n.code for n in notices(here)}


@pytest.mark.parametrize(
    ("configured", "kind"),
    [("gres/gpu=8,gres/gpu:h100=8", "h100"), ("gres/gpu=8", None), ("gres/gpu:a=4,gres/gpu:b=4", None)],
)
def test_a_type_that_the_file_does_not_name_is_the_partitions(configured: str, kind: str | None) -> None:
    pool = Pool(
        PoolName("gpu"),
        ClusterName("hpc"),
        CATALOGUE["A100-80GB"],
        Capacity.OWNED,
        Decimal(1),
        SlurmPlace("gpu"),
    )
    cluster = Cluster(ClusterName("hpc"), SlurmConnection("http://x"))
    here = PolicyContext.of(Fleet("f", "USD", (cluster,), (pool,)), "hpc", {"partition/gpu/TRES": configured})
    assert here.sites[0].gres == kind
    assert ("GresTypeUnknown" in {n.code for n in notices(here)}) == (kind is None)


_POOLS = [
    Pool(
        PoolName(name),
        ClusterName("hpc"),
        CATALOGUE["A100-80GB"],
        Capacity.OWNED,
        Decimal(1),
        SlurmPlace(name, name),
    )
    for name in ("gpu", "big")
]
_CLUSTERS = [
    (Cluster(ClusterName("hpc"), SlurmConnection("http://127.0.0.1:6820", jwt_key_file="/k")), _POOLS)
]
_CAPACITY = {GPU: 32, Supply(PoolName("big")): 64}


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_guarantees_add_up_in_every_fleet(data: st.DataObject) -> None:
    drawn = data.draw(fleets(_CLUSTERS, _CAPACITY, members=["alice", "bob", "carol"]))
    here = PolicyContext.of(drawn, "hpc", {})
    objects = wanted_objects(here)
    assert len({o.key for o in objects}) == len(objects)
    known = {o.key for o in objects}
    assert all(key in known for o in objects for key in o.after)
    for site in here.sites:
        suffix = f".{names.stem(site.supply)}.own"
        own = {
            o.key.name.removesuffix(suffix): o.fields["GrpTRES.gres/gpu"]
            for o in objects
            if o.key.name.endswith(suffix)
        }
        for team in here.tree.teams:
            grant = team.grant(site.supply)
            inside = [t.name for t in here.tree.subtree(team)]
            held = sum(int(str(own.get(name, 0))) for name in inside)
            assert held == (0 if grant is None else grant.guarantee)
