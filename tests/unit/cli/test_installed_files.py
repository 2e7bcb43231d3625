"""`fairway render slurm --check`: rendered files against installed ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.cli.shared.installed_files import differences, read_installed
from fairway.model.errors import PermanentError

RENDERED = {
    "slurm.conf": "# what it needs\nPreemptType=preempt/qos\nAccountingStorageTRES=gres/gpu,gres/gpu:a100\n"
    'PartitionName=gpu QOS=fairway.gate TRESBillingWeights="GRES/gpu=1.0"\n'
    "Include fairway.conf\n",
    "fairway.conf": "PartitionName=gpu-lent Nodes=n[1-4] PriorityTier=0\n",
    "slurmdbd.conf": "PrivateData=jobs,usage\n",
    "job_submit.lua": "local TEAMS = { a }\n",
    "fairway.lua": "local M = {}\n",
}
INSTALLED = {
    "slurm.conf": "ClusterName=x\nInclude fairway.conf\nPreemptType=preempt/qos\n"
    "AccountingStorageTRES=license/matlab,gres/gpu,gres/gpu:A100\n"
    "PartitionName=gpu Nodes=n[1-4] MaxTime=2-0 QOS=fairway.gate TRESBillingWeights=GRES/gpu=1.0\n",
    "fairway.conf": "PartitionName=gpu-lent \\\n  Nodes=n[1-4] PriorityTier=0 MaxTime=2-0\n",
    "slurmdbd.conf": "PrivateData=jobs,usage,users\n",
    "job_submit.lua": "local TEAMS = { a }\n",
}


def test_lines_count_wherever_they_are_and_may_have_more_than_is_needed() -> None:
    assert differences(RENDERED, INSTALLED) == []


def test_what_is_missing_or_other_is_a_diff() -> None:
    installed = {**INSTALLED, "slurm.conf": "PreemptType=preempt/none\n"}
    installed["job_submit.lua"] = "local TEAMS = { }\n"
    assert differences(RENDERED, installed) == [
        "--- slurm.conf (installed)",
        "+++ slurm.conf (rendered)",
        "-preempttype=preempt/none",
        "+PreemptType=preempt/qos",
        "+AccountingStorageTRES=gres/gpu,gres/gpu:a100",
        '+PartitionName=gpu QOS=fairway.gate TRESBillingWeights="GRES/gpu=1.0"',
        "+Include fairway.conf",
        "--- fairway.conf (installed)",
        "+++ fairway.conf (rendered)",
        "+PartitionName=gpu-lent Nodes=n[1-4] PriorityTier=0",
        "--- job_submit.lua (installed)",
        "+++ job_submit.lua (rendered)",
        "@@ -1 +1 @@",
        "-local TEAMS = { }",
        "+local TEAMS = { a }",
    ]


def test_a_file_counts_if_it_is_included() -> None:
    conf = INSTALLED["slurm.conf"]
    missing = [
        "--- slurm.conf (installed)",
        "+++ slurm.conf (rendered)",
        "+Include fairway.conf",
        "--- fairway.conf (installed)",
        "+++ fairway.conf (rendered)",
        "+PartitionName=gpu-lent Nodes=n[1-4] PriorityTier=0",
    ]
    without = conf.replace("Include fairway.conf\n", "")
    assert differences(RENDERED, {**INSTALLED, "slurm.conf": without}) == missing
    in_place = {**INSTALLED, "slurm.conf": without + INSTALLED["fairway.conf"]}
    del in_place["fairway.conf"]
    assert differences(RENDERED, in_place) == []
    elsewhere = conf.replace("Include fairway.conf", "include  /etc/slurm/local.conf # ours")
    by_way = {"local.conf": "Include fairway.conf\nInclude local.conf\nInclude slurm.conf\n"}
    assert differences(RENDERED, {**INSTALLED, **by_way, "slurm.conf": elsewhere}) == []


def test_a_site_with_a_script_of_its_own_needs_the_module_alone() -> None:
    own = {**INSTALLED, "job_submit.lua": "function slurm_job_submit() end", "fairway.lua": "local M = {}\n"}
    assert differences(RENDERED, own) == []
    assert "+++ fairway.lua (rendered)" in differences(RENDERED, {**own, "fairway.lua": ""})


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("A=1\n")
    (tmp_path / "jwt.key").write_bytes(b"\xff")
    assert read_installed(tmp_path) == {"slurm.conf": "A=1\n"}
    with pytest.raises(PermanentError, match="none"):
        read_installed(tmp_path / "none")
