"""A fleet's policy on real Slurm, both versions: written, found again, mended, taken over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from fairway.engines.slurm import SlurmEngine
from fairway.engines.slurm.policy.names import GATE, LENT, LOW, WAITING_URGENT
from fairway.engines.slurm.policy.render import render_slurm
from fairway.files import parse_fleet
from fairway.files.fleet.write import compose_fleet
from fairway.model.errors import Refused
from fairway.model.fleet import EngineKind, Fleet
from fairway.model.names import ClusterName
from fairway.model.observation import Observation
from fairway.policy.objects import Action, Activity, Change, Intervention, ObjectKey
from fairway.policy.plan import ClusterPlan, compute_changes
from fairway.services.plans import compare_cluster, plan_adoption, plan_cluster
from lab import Instance, find
from lab.slurm import configure
from lab.slurm.config import JOB_SUBMIT
from lab.slurm.fleet import POOLS
from tests.contract.driver import absent
from tests.plans import apply_plan
from tests.scenarios.conftest import instance_of
from tests.slurm_conf import conf_lines, slurm_lines
from tests.waiting import eventually, until

pytestmark = [pytest.mark.slurm, pytest.mark.lab, pytest.mark.timeout(240)]

LAB = ClusterName("lab")
HEAD = (
    """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  lab: {{ engine: slurm, url: {url}, credentials: {{ user: {user}, jwt_key_file: {jwt_key_file} }} }}
"""
    + POOLS
)
TEAMS = """
teams:
  research:
    share: 60
    guarantee: { gpu: 16 }
    borrow: { gpu: 16 }
    limits: { job: { gpus: 24, time: 72h }, user: { gpus: 20 } }
    teams:
      nlp: { share: 2, guarantee: { gpu: 8 }, members: [alice] }
      vision: { share: 1, members: [carol] }
  product:
    share: 40
    guarantee: { gpu: 16, mig/1g.10gb: 4 }
    borrow: { gpu: 0 }
    members: [bob, dana]
"""


@pytest.fixture(scope="module", params=["slurm-24", "slurm-26"])
def slurm(request: pytest.FixtureRequest) -> Iterator[Instance]:
    name = instance_of(request.param)
    instance = find(name)
    if instance is None or instance.state == "down":
        absent(name, f"python -m lab up slurm --name {name}")
    yield instance
    asyncio.run(_forget(instance))


@pytest.fixture
async def engine(slurm: Instance) -> AsyncIterator[SlurmEngine]:
    await _forget(slurm)
    made = SlurmEngine((fleet := _fleet(slurm, TEAMS)).clusters[0], fleet.pools)
    yield made
    await made.close()


async def _forget(slurm: Instance) -> None:
    """No job, no team of Fairway's, no line of a policy in Slurm's files: as the lab makes a cluster."""

    def idle() -> bool:
        jobs = slurm.run("squeue", "--noheader", "--all", "--format=%i").stdout.split()
        if jobs:
            slurm.run("scancel", *jobs, check=False)
        return not jobs

    await eventually(idle, 60, "no jobs")
    await asyncio.to_thread(configure, slurm, [], JOB_SUBMIT)
    empty = _fleet(slurm, "")
    made = SlurmEngine(empty.clusters[0], empty.pools)
    try:
        await _apply(made, empty)
    finally:
        await made.close()


def _fleet(slurm: Instance, teams: str) -> Fleet:
    return parse_fleet(HEAD.format(**slurm.facts()) + teams, "fleet.yaml")


async def _apply(engine: SlurmEngine, fleet: Fleet) -> ClusterPlan:
    plan = await plan_cluster(engine, fleet, LAB)
    applied = await apply_plan(engine, plan, force=True)
    if applied.refusal is not None:
        raise applied.refusal
    return plan


async def _differences(engine: SlurmEngine, fleet: Fleet) -> dict[str, set[str]]:
    changes = (await compare_cluster(engine, fleet)).changes
    return {f"{c.action} {c.key}": {f.field for f in c.fields} for c in changes}


def _sacctmgr(slurm: Instance, *words: str) -> str:
    return slurm.run("sacctmgr", "--immediate", "--noheader", "--parsable2", *words).stdout


def _sbatch(slurm: Instance, user: str, *words: str) -> str:
    wrap = ("--parsable", "--output=/dev/null", "--time=10", "--wrap=sleep 300")
    return slurm.run("sbatch", *wrap, *words, user=user).stdout.strip()


def _state(slurm: Instance, job: str) -> str:
    return slurm.run("squeue", "--noheader", f"--jobs={job}", "--format=%T", check=False).stdout.strip()


# --- written and found again ------------------------------------------------------------------------------


async def test_what_is_applied_is_found_again(slurm: Instance, engine: SlurmEngine) -> None:
    fleet = _fleet(slurm, TEAMS)
    plan = await _apply(engine, fleet)
    assert plan.changes
    assert await _differences(engine, fleet) == {}
    shown = _sacctmgr(slurm, "show", "assoc", "format=account,user,share,grptres", "account=nlp,product")
    assert "nlp||2|gres/gpu:1g.10gb=0,gres/gpu:3g.40gb=0" in shown.splitlines()
    assert "product||40|gres/gpu:1g.10gb=4,gres/gpu:3g.40gb=0,gres/gpu:a100=16" not in shown.splitlines()
    assert "nlp|alice|1|gres/gpu:1g.10gb=20,gres/gpu:3g.40gb=20,gres/gpu:a100=20" in shown.splitlines()


async def test_writing_what_is_already_so_is_no_error(slurm: Instance, engine: SlurmEngine) -> None:
    fleet = _fleet(slurm, TEAMS)
    plan = await _apply(engine, fleet)
    again = [made async for made in engine.write(plan.changes)]
    assert {c.key for c in again} == {c.key for c in plan.changes}
    assert await _differences(engine, fleet) == {}


async def test_a_changed_fleet_changes_only_what_it_says(slurm: Instance, engine: SlurmEngine) -> None:
    await _apply(engine, _fleet(slurm, TEAMS))
    raised = _fleet(slurm, TEAMS.replace("guarantee: { gpu: 16 }", "guarantee: { gpu: 12 }"))
    assert await _differences(engine, raised) == {
        "update qos research.gpu.own": {"GrpTRES.gres/gpu"},
        "update account research": {"GrpTRES.gres/gpu:a100"},
    }
    await _apply(engine, raised)
    assert await _differences(engine, raised) == {}


async def test_teams_that_leave_the_file_leave_the_cluster(slurm: Instance, engine: SlurmEngine) -> None:
    await _apply(engine, _fleet(slurm, TEAMS))
    await _apply(engine, _fleet(slurm, ""))
    shared = {GATE, LENT, LOW, WAITING_URGENT}
    ours = {o.key.name for o in (await engine.find_policy()).objects if o.ours}
    assert ours == shared  # slurm.conf may name the gate: it stays as long as the cluster has pools
    assert "research" not in _sacctmgr(slurm, "show", "account", "format=account")


async def test_a_team_may_move_to_another_parent(slurm: Instance, engine: SlurmEngine) -> None:
    await _apply(engine, _fleet(slurm, TEAMS))
    moved = "  vision: { borrow: { gpu: 8 }, members: [carol] }\n"
    fleet = _fleet(slurm, TEAMS.replace("      vision: { share: 1, members: [carol] }\n", "") + moved)
    assert "Parent" in (await _differences(engine, fleet))["update account vision"]
    await _apply(engine, fleet)
    assert await _differences(engine, fleet) == {}


# --- by hand ----------------------------------------------------------------------------------------------

BY_HAND = {
    "modify qos product.gpu.own set grptres=gres/gpu=3,cpu=7": (
        "update qos product.gpu.own",
        {"GrpTRES.gres/gpu", "GrpTRES.cpu"},
    ),
    "modify qos product.gpu.own set priority=5": ("update qos product.gpu.own", {"Priority"}),
    "modify qos product.gpu.own set preempt=fairway.low": ("update qos product.gpu.own", {"Preempt"}),
    "modify qos product.gpu.own set flags=DenyOnLimit": ("update qos product.gpu.own", {"Flags"}),
    "modify qos product.gpu.own set preemptmode=cancel": ("update qos product.gpu.own", {"PreemptMode"}),
    "modify qos fairway.lent set gracetime=30": ("update qos fairway.lent", {"GraceTime"}),
    "modify qos fairway.lent set maxwall=5": ("update qos fairway.lent", {"MaxWall"}),
    "modify qos fairway.low set maxtresperuser=gres/gpu=2": (
        "update qos fairway.low",
        {"MaxTRESPerUser.gres/gpu"},
    ),
    "modify qos fairway.low set usagefactor=2": ("update qos fairway.low", {"UsageFactor"}),
    "modify account product set grptres=gres/gpu:a100=99": (
        "update account product",
        {"GrpTRES.gres/gpu:a100"},
    ),
    "modify account product set fairshare=7": ("update account product", {"Fairshare"}),
    "modify account product set grpjobs=3 maxsubmit=9": ("update account product", {"GrpJobs", "MaxSubmit"}),
    "modify account research set maxwall=1": ("update account research", {"MaxWall"}),
    "modify account research set maxtresperjob=gres/gpu:a100=1": (
        "update account research",
        {"MaxTRESPerJob.gres/gpu:a100"},
    ),
    "modify account product set qos+=normal": ("update account product", {"QOS"}),
    "modify user alice where account=nlp set grptres=gres/gpu:a100=1": (
        "update association nlp/alice",
        {"GrpTRES.gres/gpu:a100"},
    ),
    "modify user alice where account=nlp set maxjobs=1": ("update association nlp/alice", {"MaxJobs"}),
    "add user carol account=product": ("delete association product/carol", {"Fairshare"}),
    "delete user bob where account=product": ("create association product/bob", {"Fairshare", "QOS"}),
    "delete qos nlp.gpu.own": ("create qos nlp.gpu.own", {"GrpTRES.gres/gpu"}),
}


async def test_every_change_by_hand_is_seen_and_mended(slurm: Instance, engine: SlurmEngine) -> None:
    fleet = _fleet(slurm, TEAMS)
    await _apply(engine, fleet)
    for command, (change, fields) in BY_HAND.items():
        await asyncio.to_thread(_sacctmgr, slurm, *command.split())
        differences = await _differences(engine, fleet)
        assert change in differences, (command, differences)
        assert fields <= differences[change], (command, differences)
        await _apply(engine, fleet)
        assert await _differences(engine, fleet) == {}, command


async def test_neighbours_are_never_touched(slurm: Instance, engine: SlurmEngine) -> None:
    made = [
        "add qos neighbour.gpu.own priority=7 grptres=gres/gpu=3 preempt=normal flags=NoReserve maxwall=9",
        "add account neighbour fairshare=3 grptres=gres/gpu:a100=5 maxjobs=4 qos=normal,neighbour.gpu.own",
        "add account inside-neighbour parent=neighbour",
        "add user alice account=neighbour grptres=cpu=3 maxsubmit=8",
        "add user erin account=inside-neighbour",
    ]
    for command in made:
        await asyncio.to_thread(_sacctmgr, slurm, *command.split())

    def neighbours() -> list[str]:
        qos = _sacctmgr(slurm, "show", "qos", "where", "name=neighbour.gpu.own,normal", "format=all")
        people = _sacctmgr(slurm, "show", "assoc", "where", "account=neighbour,inside-neighbour,lab")
        return [*qos.splitlines(), *people.splitlines(), _sacctmgr(slurm, "show", "user", "erin")]

    try:
        before = await asyncio.to_thread(neighbours)
        fleet = _fleet(slurm, TEAMS)
        await _apply(engine, fleet)
        assert await asyncio.to_thread(neighbours) == before
        await _apply(engine, _fleet(slurm, TEAMS.replace("share: 60", "share: 61")))
        await _apply(engine, _fleet(slurm, ""))
        assert await asyncio.to_thread(neighbours) == before
    finally:
        for command in ("delete account inside-neighbour,neighbour", "delete qos neighbour.gpu.own"):
            slurm.run("sacctmgr", "--immediate", *command.split(), check=False)
        slurm.run("sacctmgr", "--immediate", "delete", "user", "erin", check=False)


async def test_an_account_is_not_removed_with_a_neighbour_inside_it(
    slurm: Instance, engine: SlurmEngine
) -> None:
    await _apply(engine, _fleet(slurm, TEAMS))
    await asyncio.to_thread(_sacctmgr, slurm, "add", "account", "guest", "parent=product")
    try:
        with pytest.raises(Refused, match="guest") as refusal:
            await _apply(engine, _fleet(slurm, ""))
        assert refusal.value.code == "AccountNotEmpty"
        assert "guest" in _sacctmgr(slurm, "show", "account", "format=account")
    finally:
        slurm.run("sacctmgr", "--immediate", "delete", "account", "guest", check=False)
    await _apply(engine, _fleet(slurm, ""))


async def test_of_a_refused_batch_the_one_is_named(slurm: Instance, engine: SlurmEngine) -> None:
    def qos(name: str, preempt: str) -> Change:
        key = ObjectKey("qos", name)
        return Change(Action.CREATE, key, wanted={"Priority": 1, "Preempt": (preempt,)})

    batch = [qos("a.one", GATE), qos("bad.one", "nowhere"), qos("c.one", GATE)]
    writing = engine.write(batch)
    assert (await anext(writing)).key.name == "a.one"
    with pytest.raises(Refused, match=r"qos bad\.one"):
        await anext(writing)
    await _apply(engine, _fleet(slurm, ""))  # it bears our mark and nobody wants it
    assert "a.one" not in _sacctmgr(slurm, "show", "qos", "format=name")


# --- jobs -------------------------------------------------------------------------------------------------


async def _configured(slurm: Instance, engine: SlurmEngine, fleet: Fleet) -> None:
    """What an administrator does with the rendered files."""
    found = await engine.find_policy()
    files = render_slurm(fleet, LAB, found.engine_version, found.settings)
    conf, accounting = slurm_lines(files), conf_lines(files["slurmdbd.conf"])
    await asyncio.to_thread(configure, slurm, conf, files["job_submit.lua"], accounting)


async def test_the_rendered_lines_are_what_the_plan_advises(slurm: Instance, engine: SlurmEngine) -> None:
    fleet = _fleet(slurm, TEAMS)
    plan = await _apply(engine, fleet)
    assert any("gpu-lent" in a.line for a in plan.advice)
    await _configured(slurm, engine, fleet)
    left = (await plan_cluster(engine, fleet, LAB)).advice
    assert not [a for a in left if a.running and not a.unseen], left
    assert not [a for a in left if a.line.startswith("PartitionName")]
    if slurm.version != "24.11":  # which shows slurm.conf
        assert {a.file for a in left} <= {"slurmdbd.conf"}


async def test_jobs_are_counted_and_keep_their_team(slurm: Instance, engine: SlurmEngine) -> None:
    fleet = _fleet(slurm, TEAMS)
    await _apply(engine, fleet)
    await _configured(slurm, engine, fleet)
    jobs = [_sbatch(slurm, "bob", "--gres=gpu:8") for _ in range(3)]
    await eventually(lambda: _state(slurm, jobs[1]) == "RUNNING", 30, "two of them run")
    keys = [
        ObjectKey("account", "product"),
        ObjectKey("association", "product/bob"),
        ObjectKey("qos", "product.gpu.own"),
        ObjectKey("qos", LENT),
        ObjectKey("account", "nlp"),
    ]
    await eventually(lambda: _state(slurm, jobs[2]) == "PENDING", 10, "the third waits")
    counted = await engine.activity(keys)
    assert counted[keys[0]] == counted[keys[1]] == Activity(running=2, waiting=1)
    assert counted[keys[2]].running == 2
    assert keys[3] not in counted
    assert keys[4] not in counted

    with pytest.raises(Refused) as refusal:
        await _apply(engine, _fleet(slurm, ""))  # by force, and Slurm still says no
    assert refusal.value.code == "TeamBusy"
    assert _state(slurm, jobs[0]) == "RUNNING"
    await _apply(engine, fleet)


async def test_an_urgent_job_takes_its_own_teams_place(slurm: Instance, engine: SlurmEngine) -> None:
    fleet = _fleet(slurm, TEAMS)
    await _apply(engine, fleet)
    await _configured(slurm, engine, fleet)
    others = [_sbatch(slurm, "alice", "--gres=gpu:8") for _ in range(2)]
    small, large = _sbatch(slurm, "bob", "--gres=gpu:4"), _sbatch(slurm, "bob", "--gres=gpu:8")
    last = _sbatch(slurm, "bob", "--gres=gpu:4")
    await eventually(lambda: _state(slurm, last) == "RUNNING", 30, "product holds its 16")
    urgent = _sbatch(slurm, "bob", "--gres=gpu:4", "--qos=urgent")

    deadline, interventions = time.monotonic() + 40, list[Intervention]()
    while _state(slurm, urgent) != "RUNNING":
        assert time.monotonic() < deadline, interventions
        interventions += await engine.intervene(fleet)
        await asyncio.sleep(1)

    assert [n.verb for n in interventions] == [f"scontrol requeue {last}"]  # enough, and the youngest
    assert _state(slurm, small) == _state(slurm, large) == "RUNNING"
    assert {_state(slurm, job) for job in others} == {"RUNNING"}
    assert await engine.intervene(fleet) == ()


async def test_a_job_from_before_the_policy_gets_its_teams_qos(slurm: Instance, engine: SlurmEngine) -> None:
    for command in ("add account product", "add user bob account=product"):
        await asyncio.to_thread(_sacctmgr, slurm, *command.split())
    job = _sbatch(slurm, "bob", "--account=product", "--gres=gpu:8", "--hold")
    fleet = _fleet(slurm, TEAMS)
    keys = [ObjectKey("account", "product"), ObjectKey("association", "product/bob")]
    await apply_plan(engine, await plan_adoption(engine, LAB, EngineKind.SLURM, keys))
    await _apply(engine, fleet)
    await _configured(slurm, engine, fleet)
    await asyncio.to_thread(slurm.run, "scontrol", "release", job)

    deadline, interventions = time.monotonic() + 60, list[Intervention]()
    while _state(slurm, job) != "RUNNING":
        assert time.monotonic() < deadline, interventions
        interventions += await engine.intervene(fleet)
        await asyncio.sleep(1)

    assert [n.verb for n in interventions] == [f"scontrol update jobid={job} qos=normal"]
    assert slurm.run("squeue", "--noheader", f"--jobs={job}", "--format=%q").stdout.split() == [
        "product.gpu.own"
    ]


# --- taken over -------------------------------------------------------------------------------------------


async def test_an_existing_cluster_is_taken_over(slurm: Instance, engine: SlurmEngine) -> None:
    made = [
        "add qos fast priority=100 grptres=gres/gpu=4",
        "add account chemistry fairshare=60 grptres=gres/gpu:a100=16 maxwall=4320",
        "add account physics fairshare=40 grptres=gres/gpu:a100=12",
        "add account biology parent=physics grptres=gres/gpu:a100=4 maxjobs=7",
        "add user alice,bob account=chemistry",
        "add user carol account=biology",
    ]
    for command in made:
        await asyncio.to_thread(_sacctmgr, slurm, *command.split())
    try:
        bare = replace(_fleet(slurm, ""), pools=())
        found = await engine.find_policy()
        imported = engine.import_policy(bare, Observation(LAB, found.engine_version, ()), found)
        text = compose_fleet(imported.fleet, [(r.about, r.text) for r in imported.remarks])
        fleet = parse_fleet(text, "imported.yaml")
        assert fleet == imported.fleet
        assert "qos fast" in text
        assert "MaxJobs=7" in text
        teams = {str(t.name): t for t in fleet.teams}
        assert {"chemistry", "physics", "biology", "lab"} <= teams.keys()
        assert teams["biology"].parent == "physics"
        # Pools gpu and spot have GPUs of one type, and Slurm limits both together: each has a part of it.
        limited = {str(g.supply): g.ceiling for g in teams["chemistry"].grants if g.borrow is not None}
        assert limited.keys() == {"gpu", "spot"}
        assert sum(ceiling or 0 for ceiling in limited.values()) == 16

        plan = await plan_cluster(engine, fleet, LAB)
        assert all(c.key.kind == "qos" for c in plan.changes)
        keys = [o.key for o in plan.in_the_way]
        await apply_plan(engine, await plan_adoption(engine, LAB, EngineKind.SLURM, keys))
        changes = compute_changes(engine.translate(fleet, found := await engine.find_policy()), found)
        limits = {f.field for c in changes if c.action is Action.UPDATE for f in c.fields}
        assert limits <= {"QOS", "DefaultQOS", "MaxJobs", "MaxWall"}  # as limited as before
        await _apply(engine, fleet)
        assert await _differences(engine, fleet) == {}
    finally:
        # `lab` is everybody's again: without our mark, and with the QOS it had
        for command in (
            "delete account biology,chemistry,physics",
            "delete qos fast",
            "modify account lab set description=lab qos=normal",
            "modify user alice,bob,carol,fairway where account=lab set qos=normal",
        ):
            slurm.run("sacctmgr", "--immediate", *command.split(), check=False)
    until(lambda: "biology" not in _sacctmgr(slurm, "show", "account", "format=account"), 10, "all is gone")
