"""`fairway check` and `fairway schema`, as a user sees them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairway.cli.commands.check import check
from fairway.cli.commands.schema import schema
from fairway.files import fleet_schema
from tests.unit.cli.commands.test_policy import Playing
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
    assert result.stdout == "fleet.yaml: fleet acme, 3 clusters, 3 pools, no errors\n"


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
    assert (result.exit_code, result.stdout) == (0, "<stdin>: fleet acme, 3 clusters, 3 pools, no errors\n")
    assert run("-f", "-", stdin=b"\xff").exit_code == 1
    assert "<stdin>:1:1" in run("-f", "-", stdin="").stderr


GUARANTEED = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  hpc: { engine: slurm, url: "http://127.0.0.1:6820", credentials: { jwt_key_file: hpc.jwt } }
pools:
  gpu: { cluster: hpc, gpu: A100-80GB, capacity: owned, price: 1.90, slurm: { partition: gpu } }
teams:
  nlp: { guarantee: { gpu: 12 }, members: [alice] }
"""


def observed(total: int) -> dict[str, Any]:
    """The server's answer to which pools there are."""
    counts = {"total": total, "in_use": 0, "free": total, "unhealthy": 0}
    nodes = {"nodes": 2, "nodes_drained": 0, "nodes_down": 0}
    pool = {"name": "gpu", "cluster": "hpc", "gpu": "A100-80GB", "slice_kinds": [], "capacity": "owned"}
    price = {"price_per_gpu_hour": "1.90", "currency": "USD"}
    fresh = {"observed_at": None, "age_seconds": None, "reachable": True}
    return {"items": [{**pool, **price, **fresh, "gpus": counts | nodes, "slices": None}]}


def test_guarantees_are_compared_with_what_the_server_observes(fleet_file: Path) -> None:
    fleet_file.write_text(GUARANTEED)
    server = Playing()
    threading.Thread(target=server.server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server.server_port}"
    try:
        server.answers["GET /v1/pools"] = (200, observed(8))
        result = run("-f", "fleet.yaml", "--url", url)
        assert result.exit_code == 0
        assert "warning: guarantees on gpu add up to 12 (nlp 12), but its nodes have 8" in result.stderr
        assert "1 warning" in result.stdout
        told = json.loads(run("-f", "fleet.yaml", "-o", "json", "--url", url).stdout)
        assert [w["code"] for w in told["clusters"]["warnings"]] == ["GuaranteesTooHigh"]
        server.answers["GET /v1/pools"] = (200, observed(12))
        assert run("-f", "fleet.yaml", "--url", url).stderr == ""
        server.answers["GET /v1/pools"] = (200, {"items": []})
        unseen = run("-f", "fleet.yaml", "--url", url)
        assert unseen.stderr == "not compared with the clusters: the server has not observed gpu\n"
    finally:
        server.server.shutdown()
        server.server.server_close()


def test_without_a_server_a_check_says_so_and_passes(fleet_file: Path) -> None:
    fleet_file.write_text(GUARANTEED)
    result = run("-f", "fleet.yaml", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("not compared with the clusters: ")
    assert run("-f", "fleet.yaml", "--offline").stderr == ""


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
    assert done.stdout.endswith("fleet quickstart, 1 cluster, 2 pools, 2 teams, no errors\n")


def test_reading_files_needs_no_web_framework_and_no_database() -> None:
    heavy = ("pydantic", "fastapi", "sqlalchemy", "httpx2", "lightkube", "rich")
    code = f"import sys, fairway.files; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
