"""A Python function as a job: a plain interpreter runs what was sent; what cannot be sent is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fairway
from fairway.client.contexts import Context, Contexts, config_file, write_contexts
from fairway.client.function_job import FunctionJob
from fairway.model.errors import PermanentError
from tests.unit.client.test_jobs import KEPT, Playing, playing

__all__ = ["playing"]

OUTSIDE = 7


@fairway.job(gpus="A100:2", time="4h", team="nlp")
def train(lr: float, where: str, *, layers: list[int], note: Path | None = None) -> int:
    """Write what it was given."""
    import json
    from pathlib import Path as Folder

    def total(values: list[int]) -> int:
        return sum(value for value in values if value > 0)

    Folder(where).write_text(json.dumps({"lr": lr, "layers": total(layers), "note": note}))
    return 3


def run(script: str | None) -> subprocess.CompletedProcess[str]:
    """What a node does: the interpreter of the first line, without Fairway."""
    assert script is not None and script.startswith("#!/usr/bin/env python3\n")
    return subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False)


def test_the_function_runs_elsewhere_without_fairway(tmp_path: Path) -> None:
    file = tmp_path / 'it\'s "here"'
    spec = train.spec(3e-4, str(file), layers=[1, 2, -5])
    assert (spec.name, spec.gpus.count, spec.gpus.model, spec.time_seconds) == ("train", 2, "A100", 14_400)
    done = run(spec.script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert file.read_text() == '{"lr": 0.0003, "layers": 3, "note": null}'
    assert train(1.0, str(file), layers=[]) == 3, "called as it is, it runs here"
    assert (train.__name__, train.__doc__) == ("train", "Write what it was given.")


def test_an_exception_fails_the_job() -> None:
    @fairway.job()
    def fails() -> None:
        raise ValueError("no data")

    done = run(fails.spec().script)
    assert done.returncode == 1
    assert "ValueError: no data" in done.stderr


def test_submit_returns_a_handle(playing: Playing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAIRWAY_URL", "FAIRWAY_TOKEN", "FAIRWAY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAIRWAY_CONFIG_DIR", str(tmp_path))
    write_contexts(config_file(), Contexts("lab", (Context("lab", playing.target.url),)))
    playing.script = [(201, KEPT)]
    handle = train.submit(1.0, "/tmp/x", layers=[1])
    assert handle.id == "8f3k"
    sent = playing.asked[0][2]["jobs"][0]
    assert (sent["name"], sent["team"]) == ("train", "nlp")
    assert '"layers": [1]' in sent["script"]
    assert "train.submit" in repr(train)


def uses_a_global() -> int:
    return OUTSIDE + Path("x").stat().st_size


def with_a_default(x: int = OUTSIDE) -> int:
    return x


def takes_anything(*values: int) -> int:
    return sum(values)


async def awaits() -> None:
    return


def in_a_closure() -> Any:
    near = 5

    def uses_it() -> int:
        return near

    return uses_it


@pytest.mark.parametrize(
    ("function", "code", "named"),
    [
        (uses_a_global, "NotSelfContained", "OUTSIDE, Path"),
        (with_a_default, "NotSelfContained", "OUTSIDE"),
        (in_a_closure(), "NotSelfContained", "near"),
        (takes_anything, "NotAFunction", "takes_anything"),
        (awaits, "NotAFunction", "def"),
        (lambda: 1, "NotAFunction", "def"),
        (len, "NotAFunction", "def"),
    ],
)
def test_what_cannot_travel_is_refused_where_it_is_written(function: Any, code: str, named: str) -> None:
    with pytest.raises(PermanentError) as caught:
        fairway.job()(function)
    assert caught.value.code == code
    assert named in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("value", [object(), {1: "a key that is no text"}, (1, 2), float("nan"), b"bytes"])
def test_an_argument_that_would_arrive_changed_is_refused(value: object) -> None:
    made: FunctionJob[Any, Any] = train
    with pytest.raises(PermanentError) as caught:
        made.spec(value, "x", layers=[])
    assert (caught.value.code, "the argument lr" in caught.value.message) == ("ArgumentNotJson", True)
    with pytest.raises(TypeError):
        made.spec(1.0)
