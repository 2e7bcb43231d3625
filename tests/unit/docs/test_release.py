"""A release has one version and a CHANGELOG; actions are pinned, decisions have a date and a status."""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from ci import release_check
from fairway import __version__

ROOT = Path(__file__).parents[3]


def test_the_version_has_one_source() -> None:
    """The chart and the API's description are written by `make reference`, which another test compares."""
    assert release_check._version() == __version__
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert yaml.safe_load((ROOT / "deploy/helm/fairway/Chart.yaml").read_text())["appVersion"] == __version__


def test_a_release_has_its_section_in_the_changelog() -> None:
    release_check.check_changelog(__version__)
    with pytest.raises(SystemExit, match="no section"):
        release_check.check_changelog("9.9.9")
    release_check.check_changelog("9.9.9", "## 9.9.9 - 2030-01-31\n")


def test_a_package_without_a_needed_file_is_refused(tmp_path: Path) -> None:
    wheel, sdist = tmp_path / "fairway-1-py3-none-any.whl", tmp_path / "fairway-1.tar.gz"
    files = [*release_check.NEEDED, "fairway/__init__.py"]
    for left_out in (None, "fairway/demo/fleet.yaml"):
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in files:
                if name != left_out:
                    archive.writestr(name, "")
        with tarfile.open(sdist, "w:gz") as packed:
            others = ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "requirements/runtime.txt")
            for name in (*others, *(f"src/{file}" for file in files)):
                packed.addfile(tarfile.TarInfo(f"fairway-1/{name}"))
        if left_out is None:
            release_check.check_contents(sdist, wheel)
        else:
            with pytest.raises(SystemExit, match=r"has no fairway/demo/fleet\.yaml"):
                release_check.check_contents(sdist, wheel)


def test_actions_are_pinned_by_commit() -> None:
    workflows = list((ROOT / ".github/workflows").glob("*.yml"))
    assert workflows
    for workflow in workflows:
        for used in re.findall(r"uses: (.+)", workflow.read_text()):
            assert re.match(r"[\w./-]+@[0-9a-f]{40} # v\d", used), f"{workflow.name}: {used}"


def test_templates_and_policies_are_there() -> None:
    for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        found = yaml.safe_load(form.read_text())
        if form.name != "config.yml":
            assert found["name"] and found["description"] and found["body"]
            required = [
                field["id"] for field in found["body"] if field.get("validations", {}).get("required")
            ]
            assert required, form.name
    for name in ("pull_request_template.md", "../CODE_OF_CONDUCT.md", "../RELEASING.md", "../SECURITY.md"):
        assert (ROOT / ".github" / name).read_text().strip()


def test_every_decision_has_a_date_and_a_status() -> None:
    records = sorted((ROOT / "docs/adr").glob("0*.md"))
    assert len(records) > 40
    for record in records:
        head = "\n".join(record.read_text().splitlines()[:4])
        assert re.search(
            r"^Date: \d{4}-\d\d-\d\d\. Status: (proposed|accepted|replaced|superseded)", head, re.MULTILINE
        ), record.name
