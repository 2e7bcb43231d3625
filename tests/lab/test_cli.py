"""`python -m lab` answers every mistake with what, why and a hint."""

from __future__ import annotations

import json

import pytest

from tests.lab.driving import lab, up

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["env", "nobody"], "there is no instance nobody"),
        (["down"], "hint: name some, or --all"),
        (["up", "slurm", "--version", "1.0"], "hint: --version, one of: 24.11, 26.05"),
        (["up", "slurm", "--name", "Up Per"], "is no name for an instance"),
        (["up", "postgres", "--nodes", "3"], "postgres takes no --nodes"),
        (["up", "oracle"], "'oracle' is not one of"),
        (["run", "nobody", "true"], "there is no instance nobody"),
    ],
)
def test_mistakes(words: list[str], complaint: str) -> None:
    assert complaint in lab(*words, fails=True)


def test_env_speaks_shell_and_json() -> None:
    instance = up("postgres", "spoken")
    try:
        assert "export FAIRWAY_LAB_NAME=spoken\n" in lab("env", "spoken")
        assert "export DATABASE_URL=postgresql+psycopg://fairway:" in lab("env", "spoken")
        facts = json.loads(lab("env", "spoken", "-o", "json"))
        assert facts == {
            "kind": "postgres",
            "name": "spoken",
            "version": instance.version,
            "url": facts["url"],
        }
        assert "is taken" in lab("up", "prometheus", "--name", "spoken", fails=True)
    finally:
        lab("wipe", "spoken")
    assert json.loads(lab("status", "-o", "json")) == [] or "spoken" not in lab("status")
