"""The committed description is the one this code gives."""

from __future__ import annotations

import json
from pathlib import Path

from fairway.api.openapi import document

COMMITTED = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"


def test_committed_document_is_current() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == document(), "write it anew:  make reference"


def test_every_operation_says_who_may_and_how_it_fails() -> None:
    described = json.loads(document())
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            role = operation["x-fairway-role"]
            assert role in ("public", "alerts", "viewer", "member", "lead", "operator", "admin"), (
                method,
                path,
            )
            assert bool(operation["security"]) == (role != "public"), (method, path)
            assert operation["description"], (method, path)
            if role != "public":
                failing = operation["responses"]["401"]["content"]
                assert list(failing) == ["application/problem+json"]
