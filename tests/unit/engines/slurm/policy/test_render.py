"""What is advised and rendered: lines of slurm.conf, tables of job_submit.lua."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairway.engines.slurm.policy import advice as settings
from fairway.engines.slurm.policy.advice import advice, format_time, notices, parse_time
from fairway.engines.slurm.policy.names import GATE
from fairway.engines.slurm.policy.render import SCRIPT, render_slurm
from fairway.engines.slurm.policy.translate import PolicyContext
from tests.slurm_conf import conf_lines, slurm_lines
from tests.unit.engines.slurm.policy.made import TEAMS, fleet, ground

PARTITIONS = {
    "partition/gpu/Nodes": "gpu[001-004]",
    "partition/gpu/PriorityTier": "10",
    "partition/gpu/QOS": GATE,
    "partition/gpu/TRES": "cpu=256,gres/gpu=32,gres/gpu:a100=32",
    "partition/gpu/TRESBillingWeights": "CPU=0.0,GRES/gpu=1.0",
    "partition/gpu-lent/Nodes": "gpu[001-004]",
    "partition/gpu-lent/PriorityTier": "1",
    "partition/gpu-lent/QOS": "",
    "partition/gpu-lent/TRESBillingWeights": "GRES/gpu=1.0",
}
RUNNING = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "AccountingStorageTRES": "cpu,mem,gres/gpu,gres/gpu:a100,gres/gpu:1g.10gb,gres/gpu:3g.40gb",
    "JobRequeue": "1",
    "JobSubmitPlugins": "lua,throttle",
    "PreemptMode": "REQUEUE",
    "PreemptType": "preempt/qos",
    "PriorityDecayHalfLife": "7-00:00:00",
    "PriorityMaxAge": "7-00:00:00",
    "PriorityType": "priority/multifactor",
    "PriorityWeightAge": "200000",
    "PriorityWeightFairshare": "100000",
    "PriorityWeightQOS": "10000000",
    "PrivateData": "jobs,usage,users",
}


def lines(running: dict[str, str]) -> dict[str, str]:
    told = advice(ground(settings=running), running)
    return {a.line: a.running for a in told if a.file == "slurm.conf" and "mig" not in a.line}


def test_nothing_is_advised_where_all_is_well() -> None:
    assert lines({**RUNNING, **PARTITIONS}) == {}


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("PreemptType", "preempt/none", "PreemptType=preempt/qos"),
        ("AccountingStorageEnforce", "associations", "AccountingStorageEnforce=associations,limits,qos"),
        ("JobSubmitPlugins", "", "JobSubmitPlugins=lua"),
        ("JobSubmitPlugins", "throttle", "JobSubmitPlugins=throttle,lua"),
        (
            "AccountingStorageTRES",
            "gres/gpu,license/matlab",
            "AccountingStorageTRES=gres/gpu,license/matlab,gres/gpu:1g.10gb,gres/gpu:3g.40gb,gres/gpu:a100",
        ),
    ],
)
def test_another_value_is_advised_against(key: str, value: str, line: str) -> None:
    assert lines({**RUNNING, **PARTITIONS, key: value}) == {line: value}


def test_what_the_policy_does_not_need_stays() -> None:
    running = {**RUNNING, **PARTITIONS, "PrivateData": "users", "PriorityDecayHalfLife": "14-00:00:00"}
    assert lines({**running, "PriorityMaxAge": "3-00:00:00"}) == {}
    assert "JobsVisible" in {notice.code for notice in notices(ground(settings=running))}


def test_a_half_life_of_the_file_is_advised() -> None:
    running = {**RUNNING, **PARTITIONS}
    context = PolicyContext.of(fleet("fairness: { half_life: 1d }\n" + TEAMS), "hpc", running)
    told = {a.line for a in advice(context, running) if a.line.startswith("Priority")}
    assert told == {"PriorityDecayHalfLife=1-00:00:00", "PriorityMaxAge=1-00:00:00"}


def test_what_is_not_shown_is_not_claimed() -> None:
    told = advice(ground(), PARTITIONS)
    unseen = [a for a in told if a.file == "slurm.conf" and not a.line.startswith("PartitionName")]
    assert unseen
    assert all(a.unseen for a in unseen)
    assert {a.running for a in unseen} == {settings.UNSEEN}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partition/gpu/QOS", ""),
        ("partition/gpu-lent/PriorityTier", "10"),
        ("partition/gpu/TRESBillingWeights", ""),
        ("partition/gpu-lent/Nodes", "gpu[001-003]"),
    ],
)
def test_a_partition_that_is_not_as_it_should_be(key: str, value: str) -> None:
    told = lines({**RUNNING, **PARTITIONS, key: value})
    assert [line.split()[0] for line in told] == [f"PartitionName={key.split('/')[1]}"]


def test_no_line_names_a_team() -> None:
    files = render_slurm(fleet(), "hpc", "24.11", PARTITIONS)
    text = "\n".join((*slurm_lines(files), *conf_lines(files["slurmdbd.conf"])))
    assert not re.search("research|nlp|vision|product", text)
    assert f'PartitionName=gpu PriorityTier=10 QOS={GATE} TRESBillingWeights="CPU=0.0,GRES/gpu=1.0"' in text
    assert "PartitionName=gpu-lent Nodes=gpu[001-004] PriorityTier=1" in text


@pytest.mark.parametrize("seconds", [0, 59, 60, 3600, 86_399, 86_400, 604_800, 1_000_001])
def test_times_read_back(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds


def test_the_script_has_each_teams_list() -> None:
    script = render_slurm(fleet(spot=True), "hpc")["job_submit.lua"]
    assert '["gpu"] = "nlp.gpu.own,research.gpu.own,research.gpu.kin,fairway.lent"' in script
    assert '["mig/1g.10gb"] = "product.mig.1g.10gb.own,fairway.lent"' in script
    assert '["carol"] = "vision",' in script
    assert re.search(r'\["spot"\] = \{ \["lent"\] = "spot-lent", .*\["spot"\] = true', script)
    assert '["urgent"] = { ["rank"] = 100, ["preemptible"] = false, ["urgent"] = true }' in script
    assert "assoc_qos" not in script.split("local GPU_FIELDS")[1]


def test_the_script_follows_the_tables_unchanged() -> None:
    for made in (fleet(), fleet(spot=True)):
        rendered = render_slurm(made, "hpc")["job_submit.lua"]
        assert rendered.endswith(f"\n\n{SCRIPT}")
        assert (
            rendered.count("function slurm_job_submit(") == rendered.count("function slurm_job_modify(") == 1
        )


def test_the_lint_knows_the_tables_of_the_script() -> None:
    """.luacheckrc allows the script to read exactly the locals that are rendered before it."""
    tables = render_slurm(fleet(), "hpc")["job_submit.lua"].removesuffix(SCRIPT)
    rendered = {name for line in re.findall(r"^local (.+?) =", tables, re.M) for name in line.split(", ")}
    config = Path(".luacheckrc").read_text()
    allowed = re.search(r"read_globals = \{(.*?)\}", config, re.S)
    assert allowed is not None
    assert set(re.findall(r'"(\w+)"', allowed[1])) == rendered | {"slurm"}


def test_no_name_ends_a_string_of_the_script() -> None:
    odd = """
teams:
  ops: { borrow: { gpu: 8 }, members: ["a@b.c"] }
"""
    script = render_slurm(fleet(odd), "hpc")["job_submit.lua"]
    assert '["a@b.c"] = "ops",' in script


def test_jobs_from_before_typed_tres_are_noted_until_gpus_are_counted_by_type() -> None:
    def codes(tres: str) -> set[str]:
        running = {**RUNNING, **PARTITIONS, "partition/gpu/TRES": tres}
        return {n.code for n in settings.notices(ground(settings=running))}

    assert "JobsBeforeTypes" in codes("cpu=256,gres/gpu=32")
    assert "JobsBeforeTypes" not in codes("cpu=256,gres/gpu=32,gres/gpu:a100=32")


def test_root_jobs_are_advised_against_and_may_stay() -> None:
    rendered = render_slurm(fleet(), "hpc", "24.11", PARTITIONS)["slurm.conf"]
    before, _, _ = rendered.partition("DisableRootJobs=YES")
    assert before.endswith("# optional: leave it out where root runs jobs of the site's own\n")
    assert not any("DisableRootJobs" in line for line in lines({**RUNNING, **PARTITIONS}))
