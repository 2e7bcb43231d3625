"""What the documents say of roles, credentials, open routes and findings is all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from fairway.model.access import Role
from tests.unit.api.test_auth import EXPECTED

ROOT = Path(__file__).parents[3]
POLICY = (ROOT / "SECURITY.md").read_text()
PAGE = (ROOT / "docs" / "operating" / "security.md").read_text()
REVIEW = (ROOT / "docs" / "operating" / "security-review.md").read_text()


@pytest.mark.parametrize("role", list(Role))
def test_what_each_role_is_worth_is_told(role: Role) -> None:
    worth = PAGE.partition("## What each role is worth")[2].partition("\n## ")[0]
    assert re.search(rf"^\| {role} \| .", worth, re.MULTILINE)
    assert role in POLICY.partition("## What is worth stealing")[2]


def test_what_each_credential_is_worth_is_told() -> None:
    worth = PAGE.partition("## What each credential is worth")[2].partition("\n## ")[0]
    rights = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "rights.yaml").read_text())
    accounts = [f"`{one['metadata']['name']}`" for one in rights if one["kind"] == "ServiceAccount"]
    for credential in ("jwt_key_file", "token_file", "database's URL", "state folder", "cookie", *accounts):
        assert credential in worth


def test_the_policy_names_every_route_that_is_open() -> None:
    for (_, path), role in EXPECTED.items():
        if role is None:
            assert f"`{path}`" in POLICY


def test_every_finding_has_its_row_and_the_tests_it_names_exist() -> None:
    rows = dict(re.findall(r"^\| ([HML]\d+) \|(.*)$", REVIEW, re.MULTILINE))
    assert list(rows) == [
        f"{letter}{n}" for letter, last in (("H", 5), ("M", 8), ("L", 13)) for n in range(1, last + 1)
    ]
    for finding, row in rows.items():
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, finding
        for path, name in named:
            assert f"def {name}(" in (ROOT / path).read_text(), (finding, path, name)
