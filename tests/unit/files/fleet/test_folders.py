"""Where jobs keep what outlives them, and where Slurm's tools are: read, said and written back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairway.files import check_text
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import Folders, SlurmConnection
from fairway.policy.fleet_diff import describe
from tests.unit.files.fleets import FOLDER, SOUND, changed, checked, only_fault

TOLD = """engine: slurm
    tools: slurm/bin
    logs: /shared/logs
    logs_seen_at: /mnt/logs
    checkpoints: /shared/ckpt"""


def test_they_are_read_and_written_back() -> None:
    fleet = checked(changed("engine: slurm", TOLD)).fleet
    assert fleet is not None
    hpc = fleet.cluster("hpc")
    assert hpc.folders == Folders("/shared/logs", "/mnt/logs", "/shared/ckpt")
    assert isinstance(hpc.connection, SlurmConnection) and hpc.connection.tools == f"{FOLDER}/slurm/bin"
    assert check_text(compose_fleet(fleet), "composed").fleet == fleet


def test_a_claim_will_do_for_checkpoints() -> None:
    fleet = checked(changed("engine: slurm", "engine: slurm\n    checkpoints: pvc/ckpt")).fleet
    assert fleet is not None and fleet.cluster("hpc").folders == Folders(checkpoints="pvc/ckpt")


@pytest.mark.parametrize("told", ["logs: logs", "logs_seen_at: ~/logs", "checkpoints: claim/x"])
def test_nodes_and_server_need_whole_paths(told: str) -> None:
    assert only_fault(changed("engine: slurm", f"engine: slurm\n    {told}")).code == "BadPath"


def test_a_change_of_folders_is_said() -> None:
    fleet = checked(SOUND).fleet
    assert fleet is not None
    moved = replace(fleet.clusters[0], folders=Folders("/shared/logs"))
    said = str(describe(fleet, replace(fleet, clusters=(moved, *fleet.clusters[1:]))))
    assert f"folders of cluster {moved.name}" in said and "logs /shared/logs, checkpoints nowhere" in said
