"""What job_submit.lua makes of a job: a team's GPU work is governed, everything else runs as before."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.installed import ANSWER, ANY, probe
from fairway.engines.slurm.policy.render import render_slurm, script_digests
from fairway.files import parse_fleet
from tests.unit.engines.slurm.policy.made import HEAD

LUA = shutil.which("lua") or shutil.which("lua5.1") or ""
pytestmark = pytest.mark.skipif(not LUA, reason="no lua here: apt install lua5.1")

FLEET = (
    HEAD.replace(
        "{ partition: gpu, gres: a100 }", "{ partition: short, gres: a100, other_partitions: [long, vip] }"
    )
    + """
teams:
  physics: { guarantee: { gpu: 8 }, borrow: { gpu: 8, mig/1g.10gb: 4 }, members: [alice] }
  ml-team: { account: ml_team, borrow: { gpu: 8 }, members: [bob] }
  fresh: { guarantee: { gpu: 4 }, members: [carol] }
"""
)
SETTINGS = {
    names.SITE_QOS: "debug,long,normal",
    f"{names.SITE_ACCOUNT}physics": "debug,normal",
    f"{names.SITE_ACCOUNT}ml_team": "normal",
    f"{names.SITE_ACCOUNT}biology": "normal",
    f"{names.DEFAULT_QOS_OF}physics": "normal",
    f"{names.DEFAULT_QOS_OF}ml_team": "normal",
    f"{names.QOS_WALL}debug": "60",
    f"{names.QOS_WALL}normal": "2880",
    "partition/long/DefaultTime": "30",
    "partition/vip/AllowQos": "debug",
}
DRIVER = """
slurm = { SUCCESS = 0, ERROR = -1, log_user = function(text) print("said=" .. text) end }
dofile(arg[1])
local job = {}
for n = 3, #arg do
  local key, value = arg[n]:match("^([^=]+)=(.*)$")
  job[key] = tonumber(value) or value
end
local all = { short = { flag_default = 1 }, cpu = { flag_default = 0 } }
print("code=" .. slurm_job_submit(job, all, tonumber(arg[2])))
for key, value in pairs(job) do print(key .. "=" .. tostring(value)) end
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lua")
    script = render_slurm(parse_fleet(FLEET, "fleet.yaml"), "hpc", found=SETTINGS)["job_submit.lua"]
    (folder / "job_submit.lua").write_text(script)
    (folder / "driver.lua").write_text(DRIVER)
    return folder


def submit(folder: Path, user: str, *words: str) -> dict[str, str]:
    command = [LUA, "driver.lua", "job_submit.lua", "1000", f"user_name={user}", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


GPU = "tres_per_node=gres/gpu:1"
TYPED = "gres/gpu:a100:1"
OWN = "physics.gpu.own,fairway.lent"


def test_gpu_work_of_a_team_is_governed_in_every_partition_of_its_pool(folder: Path) -> None:
    for asked in ("short", "long", "vip", "short-lent"):
        own = asked.removesuffix("-lent")
        job = submit(folder, "alice", "account=physics", f"partition={asked}", GPU)
        assert (job["qos"], job["partition"], job["tres_per_node"]) == (OWN, f"{own},{own}-lent", TYPED)


def test_several_partitions_of_one_pool_may_be_asked_for(folder: Path) -> None:
    job = submit(folder, "alice", "account=physics", "partition=short,long", GPU)
    assert (job["partition"], job["qos"]) == ("short,short-lent,long,long-lent", OWN)


def test_the_default_partition_counts_and_so_does_the_default_team(folder: Path) -> None:
    job = submit(folder, "bob", "default_account=ml_team", GPU)
    assert (job["account"], job["partition"], job["qos"]) == ("ml_team", "short-lent", "fairway.lent")


@pytest.mark.parametrize(
    "words",
    [
        ("account=physics", "partition=vip"),
        ("account=physics", "partition=vip", "qos=debug"),
        ("account=physics", "partition=vip", "qos=normal"),
        ("account=biology", "partition=vip", GPU),
        ("account=biology", "partition=vip", "qos=long", GPU),
        ("account=unheard-of", "partition=vip"),
    ],
)
def test_other_work_keeps_its_account_and_qos_and_goes_to_the_second_partition(
    folder: Path, words: tuple[str, ...]
) -> None:
    job = submit(folder, "alice", *words)
    asked = dict(word.split("=", 1) for word in words)
    assert job == {**asked, "user_name": "alice", "code": "0", "partition": "vip-lent"}


def test_names_of_accounts_and_qos_have_no_case(folder: Path) -> None:
    job = submit(folder, "alice", "account=Physics", "partition=short", "qos=Debug", GPU)
    assert (job["account"], job["qos"]) == ("physics", OWN)


def test_a_qos_of_ours_is_for_governed_jobs_alone(folder: Path) -> None:
    """An account inside a team's inherits its list."""
    job = submit(folder, "dave", "account=biology", "qos=physics.gpu.own", GPU)
    assert "is for GPU jobs of teams" in job["said"]


def test_other_partitions_are_none_of_its_business(folder: Path) -> None:
    for words in (
        ("partition=cpu",),
        ("partition=cpu", "qos=debug", GPU),
        ("partition=cpu,big", "account=x"),
    ):
        job = submit(folder, "alice", *words)
        assert job == {**dict(w.split("=", 1) for w in words), "user_name": "alice", "code": "0"}


def test_a_partition_that_is_no_pools_stays_in_a_list(folder: Path) -> None:
    assert submit(folder, "alice", "account=physics", "partition=short,cpu")["partition"] == "short-lent,cpu"


def test_a_team_that_fairway_made_has_no_qos_of_the_site(folder: Path) -> None:
    job = submit(folder, "carol", "account=fresh", "partition=vip")
    assert (job["qos"], job["partition"]) == ("fairway.lent", "vip-lent")


def test_a_qos_of_the_site_is_no_obstacle_and_its_time_limit_counts(folder: Path) -> None:
    job = submit(folder, "alice", "account=physics", "partition=short", "qos=debug", "time_limit=60", GPU)
    assert (job["qos"], job["partition"], job["code"]) == (OWN, "short,short-lent", "0")
    assert "run by priority, not as QOS debug" in job["said"]
    no_default = submit(folder, "alice", "account=physics", "partition=short", "qos=debug", GPU)
    assert no_default["time_limit"] == "60"
    half_an_hour = submit(folder, "alice", "account=physics", "partition=long", "qos=debug", GPU)
    assert "time_limit" not in half_an_hour


def test_the_qos_list_of_a_partition_counts_for_the_qos_of_the_site(folder: Path) -> None:
    """Only debug may use vip. A job that names no QOS has any of its account's; another account has none."""
    for qos in ("debug", "low", ""):
        job = submit(folder, "alice", "account=physics", "partition=vip", f"qos={qos}", "time_limit=60", GPU)
        assert job["code"] == "0", job
    both = submit(folder, "alice", "account=physics", "partition=vip,short", "qos=normal", GPU)
    assert both["partition"] == "short,short-lent"
    refused = (
        ("account=physics", "qos=normal", GPU),
        ("account=ml_team", GPU),
        ("account=ml_team", "shared=0"),
    )
    for words in refused:
        job = submit(folder, "alice", "partition=vip", *words)
        assert "QOS normal may not use partition vip" in job["said"]
    longer = submit(folder, "alice", "account=physics", "partition=vip", "time_limit=61", GPU)
    assert "QOS debug may run for 60 minutes" in longer["said"]


def test_an_exclusive_job_gets_all_gpus_and_is_lent(folder: Path) -> None:
    job = submit(folder, "alice", "account=physics", "partition=long", "shared=0")
    assert (job["qos"], job["partition"]) == ("fairway.lent", "long-lent")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("account=unheard-of", GPU), "unheard-of is no team here"),
        (("account=physics", "qos=long", GPU), "leave --qos out, or name one of low, normal"),
        (("account=physics", "qos=debug", "time_limit=61", GPU), "QOS debug may run for 60 minutes"),
        (("account=physics", "time_limit=2881", GPU), "QOS normal may run for 2880 minutes"),
        (("account=physics", "partition=mig", GPU), "has several GPU types, name one"),
        (
            ("account=ml_team", "partition=mig", "tres_per_node=gres/gpu:1g.10gb:1"),
            "has no grant on pool mig",
        ),
    ],
)
def test_what_a_policy_refuses(folder: Path, words: tuple[str, ...], said: str) -> None:
    job = submit(folder, "alice", *words)
    assert job["code"] != "0"
    assert said in job["said"]


def test_the_script_answers_which_of_its_tables_differ(folder: Path) -> None:
    digests = dict(script_digests(parse_fleet(FLEET, "fleet.yaml"), "hpc", SETTINGS))
    assert "TEAMS/physics" in digests

    def answer(items: dict[str, str], uid: str = "1000") -> int:
        words = [f"{key}={value}" for key, value in probe(items.items())["job"].items() if key != "hold"]
        command = [LUA, "driver.lua", "job_submit.lua", uid, *(w for w in words if "\n" not in w)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        told = dict(line.split("=", 1) for line in done.stdout.splitlines())
        return int(told["code"]) - ANSWER

    assert answer(digests) == 0
    assert answer(digests, uid="0") == 0
    changed = {**digests, "TEAMS/physics": "abc"}
    assert answer(changed) == list(digests).index("TEAMS/physics") + 1
    assert answer({"TEAMS/physics": ANY}) == 0
    assert answer({"script": digests["script"], "TEAMS/newteam": ANY}) == 2


def test_a_script_of_the_site_can_call_the_module(folder: Path) -> None:
    rendered = render_slurm(parse_fleet(FLEET, "fleet.yaml"), "hpc", found=SETTINGS)
    (folder / "fairway.lua").write_text(rendered["fairway.lua"])
    (folder / "site.lua").write_text(
        'local fairway = dofile("fairway.lua")\n'
        "function slurm_job_submit(job, partitions, uid)\n"
        '  if job.name == "forbidden" then return 1 end\n'
        "  return fairway.slurm_job_submit(job, partitions, uid)\n"
        "end\n"
    )
    words = ("user_name=alice", "account=physics", "partition=short", GPU)
    for name, code in (("train", "0"), ("forbidden", "1")):
        command = [LUA, "driver.lua", "site.lua", "1000", f"name={name}", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        job = dict(line.split("=", 1) for line in done.stdout.splitlines())
        assert job["code"] == code
        assert (job.get("qos") == OWN) is (code == "0")


def test_accounts_that_are_no_team_are_refused_gpus_if_the_fleet_file_says_so(folder: Path) -> None:
    fleet = FLEET.replace("engine: slurm", "engine: slurm, existing_workloads: refuse", 1)
    assert fleet != FLEET
    script = render_slurm(parse_fleet(fleet, "fleet.yaml"), "hpc", found=SETTINGS)["job_submit.lua"]
    (folder / "strict").mkdir()
    for name, text in (("job_submit.lua", script), ("driver.lua", DRIVER)):
        (folder / "strict" / name).write_text(text)
    refused = submit(folder / "strict", "dave", "account=biology", "partition=vip", GPU)
    assert "biology is no team here" in refused["said"]
    assert submit(folder / "strict", "dave", "account=biology", "partition=vip")["code"] == "0"
