"""Each import rule is planted against in a copy of the source, and `lint-imports` must name it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PLANTED = [
    ("model/fleet.py", "import fairway.files", "layers"),
    ("settings/settings.py", "import fairway.wire", "layers"),
    ("policy/plan.py", "import fairway.engines", "layers"),
    ("cost/charges.py", "import fairway.policy", "layers"),
    ("advise/diagnosis.py", "import fairway.explain.reasons", "layers"),
    ("wire/jobs.py", "import fairway.views", "layers"),
    ("views/jobs.py", "import fairway.ledger", "layers"),
    ("files/__init__.py", "import fairway.ledger", "layers"),
    ("ledger/__init__.py", "import fairway.control", "layers"),
    ("engines/virtual/engine.py", "import fairway.ledger", "layers"),
    ("services/charges.py", "import fairway.api", "layers"),
    ("control/runner.py", "import fairway.api", "layers"),
    ("api/app.py", "import fairway.web", "layers"),
    ("server/server.py", "import fairway.demo", "layers"),
    ("model/observation.py", "import time", "pure-core"),
    ("model/errors.py", "import os", "pure-core"),
    ("simulate/cluster/simulator.py", "import random", "pure-core"),
    ("simulate/cluster/simulator.py", "import fairway.wire", "layers"),
    ("policy/plan.py", "import time", "pure-core"),
    ("advise/right_size.py", "import time", "pure-core"),
    ("web/pages/jobs/job_page.py", "import fairway.api.routes.jobs", "pages-share-services"),
    ("web/app.py", "import fairway.api.middleware", "pages-share-services"),
    ("api/routes/jobs.py", "import fairway.web.render", "api-knows-no-pages"),
    ("engines/slurm/engine.py", "import fairway.engines.kubernetes", "engines-apart"),
    ("engines/slurm/engine.py", "import lightkube", "only-kubernetes-imports-its-client"),
    ("control/__init__.py", "import fastapi", "only-api-imports-the-web-framework"),
    ("api/__init__.py", "import sqlalchemy", "only-ledger-speaks-sql"),
    ("cli/__init__.py", "import fairway.ledger", "cli-is-a-client"),
    ("client/__init__.py", "import fairway.services", "client-knows-wire-types-only"),
]

CIRCLES = [
    ("model/gpu.py", "import fairway.model.fleet", "fairway.model", ".gpu -> .fleet"),
    ("ledger/schema/tables.py", "import fairway.ledger.jobs.submit", "fairway.ledger", ".schema -> .jobs"),
    (
        "simulate/cluster/jobs.py",
        "import fairway.simulate.cluster.scheduler",
        "fairway.simulate.cluster",
        ".jobs -> .scheduler",
    ),
    (
        "engines/kubernetes/nodes/facts.py",
        "import fairway.engines.kubernetes.policy.quota",
        "fairway.engines.kubernetes",
        ".nodes -> .policy",
    ),
    (
        "cli/output/messages.py",
        "import fairway.cli.output.faults",
        "fairway.cli.output",
        ".messages -> .faults",
    ),
]


def lint(source: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on a copy, so that nothing of the checkout is touched."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=source,
        env={"PYTHONPATH": str(source / "src"), "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def rule_name(identifier: str) -> str:
    """The sentence by which import-linter reports the contract `identifier`."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    at = lines.index(f'id = "{identifier}"')
    return lines[at + 1].removeprefix('name = "').removesuffix('"')


def test_the_source_keeps_every_rule(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout


def test_no_folder_hides_its_modules_from_the_rules() -> None:
    """import-linter does not look into a folder without `__init__.py`, nor into what is below it."""
    package = ROOT / "src/fairway"
    folders = {
        folder for file in package.rglob("*.py") for folder in file.parents if folder.is_relative_to(package)
    }
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_every_planted_violation_is_named(copy: Path) -> None:
    """All at once: each of them is listed, and every rule is broken."""
    for file, line, _ in PLANTED:
        with (copy / "src/fairway" / file).open("a") as f:
            f.write(f"\n{line}\n")
    result = lint(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    for file, line, rule in PLANTED:
        importer = "fairway." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert f"{rule_name(rule)} BROKEN" in result.stdout
        assert f"{importer} -> {line.removeprefix('import ')} (l." in result.stdout, (file, line)


@pytest.mark.nightly("each violation alone; CI plants all of them at once")
@pytest.mark.parametrize(("file", "line", "rule"), PLANTED, ids=[f"{f}: {i}" for f, i, _ in PLANTED])
def test_a_planted_violation_is_named(copy: Path, file: str, line: str, rule: str) -> None:
    with (copy / "src/fairway" / file).open("a") as f:
        f.write(f"\n{line}\n")
    result = lint(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{rule_name(rule)} BROKEN" in result.stdout


def test_every_planted_circle_is_named(copy: Path) -> None:
    for file, line, _, _ in CIRCLES:
        with (copy / "src/fairway" / file).open("a") as f:
            f.write(f"\n{line}\n")
    result = lint(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{rule_name('no-circles')} BROKEN" in result.stdout
    for _, _, package, edge in CIRCLES:
        assert f"No cycles are allowed in {package}." in result.stdout
        assert f"- {edge} (1 import)" in result.stdout


def test_a_package_without_a_place_in_the_layers_is_named(copy: Path) -> None:
    (copy / "src/fairway/utils").mkdir()
    (copy / "src/fairway/utils/__init__.py").write_text("import fairway.model\n")
    result = lint(copy)
    assert result.returncode == 1
    assert "utils" in result.stdout
