"""`fairway check` and `fairway schema`, as a user sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairway.cli.commands.check import check
from fairway.cli.commands.schema import schema
from fairway.files import fleet_schema
from tests.unit.files.fleets import SOUND, changed

EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.fixture
def fleet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("fleet.yaml")


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(check, arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_quiet_when_all_is_well(fleet_file: Path) -> None:
    fleet_file.write_text(SOUND)
    result = run("-f", "fleet.yaml")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "fleet.yaml: fleet acme, 3 clusters, 3 pools, no faults\n"


def test_a_fault_says_what_where_and_what_to_do(fleet_file: Path) -> None:
    fleet_file.write_text(changed("cluster: hpc", "cluster: hcp"))
    result = run("-f", "fleet.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: pool hpc-a100 is on cluster hcp, which the file does not have\n"
        "  fleet.yaml:17:14  pools.hpc-a100.cluster   hcp\n"
        "  expected one of hpc, cloud, lab\n"
        "\n"
        "hint: did you mean hpc?\n"
        "\n"
        "fleet.yaml: 1 error\n"
    )


def test_both_places_of_a_clash_are_shown_in_columns(fleet_file: Path) -> None:
    fleet_file.write_text(changed("name: acme", "name: acme\nname: other"))
    assert "  fleet.yaml:4:1  name\n  fleet.yaml:3:1  name\n" in run("-f", "fleet.yaml").stderr


def test_warnings_are_shown_and_pass(fleet_file: Path) -> None:
    fleet_file.write_text(changed("https://slurm.example.org:6820", "http://slurm.example.org"))
    result = run("-f", "fleet.yaml")
    assert result.exit_code == 0
    assert result.stderr.startswith(
        "warning: tokens for slurm.example.org would cross the network unencrypted\n"
    )
    assert result.stdout == "fleet.yaml: fleet acme, 3 clusters, 3 pools, 1 warning\n"


def test_json_for_programs(fleet_file: Path) -> None:
    fleet_file.write_text(SOUND)
    told = json.loads(run("-f", "fleet.yaml", "-o", "json").stdout)
    assert told == {
        "source": "fleet.yaml",
        "valid": True,
        "fleet": {
            "name": "acme",
            "clusters": ["hpc", "cloud", "lab"],
            "pools": ["hpc-a100", "cloud-h100", "lab-mig"],
            "teams": [],
        },
        "faults": [],
    }
    fleet_file.write_text(changed("kind: Fleet", "kind: Fleet\nkind: Fleet"))
    result = run("-f", "fleet.yaml", "-o", "json")
    told = json.loads(result.stdout)
    assert (result.exit_code, result.stderr, told["valid"], told["fleet"]) == (1, "", False, None)
    assert told["faults"][0] == {
        "severity": "error",
        "code": "DuplicateKey",
        "message": "the key kind stands twice in one mapping",
        "source": "fleet.yaml",
        "line": 3,
        "column": 1,
        "path": "kind",
        "found": "",
        "expected": "",
        "hint": "take one of them away, or rename it",
        "related": [{"line": 2, "column": 1, "path": "kind", "value": ""}],
    }


def test_standard_input(fleet_file: Path) -> None:
    result = run("-f", "-", stdin=SOUND)
    assert (result.exit_code, result.stdout) == (0, "<stdin>: fleet acme, 3 clusters, 3 pools, no faults\n")
    assert run("-f", "-", stdin=b"\xff").exit_code == 1
    assert "<stdin>:1:1" in run("-f", "-", stdin="").stderr


def test_a_file_that_is_not_there(fleet_file: Path) -> None:
    result = run("-f", "fleet.yaml")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot read fleet.yaml: No such file or directory\n")


def test_the_schema_is_printed_as_json() -> None:
    result = CliRunner().invoke(schema)
    assert result.exit_code == 0 and json.loads(result.stdout) == fleet_schema()


def test_the_command_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairway.cli", "check", "-f", str(EXAMPLES / "quickstart.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("fleet quickstart, 1 cluster, 2 pools, 2 teams, no faults\n")


def test_reading_files_needs_no_web_framework_and_no_database() -> None:
    heavy = ("pydantic", "fastapi", "sqlalchemy", "httpx2", "lightkube", "rich")
    code = f"import sys, fairway.files; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
