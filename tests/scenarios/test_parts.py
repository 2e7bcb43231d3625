"""The parts the scenarios stand on, each seen right and wrong: a stage that cannot fail shows nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from lab.slurm.site import expanded
from tests.scenarios import results, table
from tests.scenarios.hand import Hand, JobSeen, Order, State
from tests.scenarios.play import play
from tests.scenarios.promises import PROMISES
from tests.scenarios.promises.quota import least_needed
from tests.scenarios.results import Result, worst
from tests.scenarios.stage import Job, Sample, Stage, TooLate, Verdict, running
from tests.scenarios.stages.slurm import arguments, job_seen


class Script:
    """A hand whose engine does what the script says, a look a second."""

    name = "script"

    def __init__(self, *looks: Mapping[str, JobSeen]) -> None:
        self.looks = list(looks)
        self.clock = 0.0

    async def look(self) -> Sequence[Mapping[str, JobSeen]]:
        return [self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]]

    async def words(self, job: str) -> str:
        return "no words"

    def now(self) -> float:
        return self.clock

    async def pause(self, seconds: float) -> None:
        self.clock += 1


WAITS, RUNS = JobSeen(State.WAITING), JobSeen(State.RUNNING, 1, ("n1",), 8)
JOB = Job("1", Order("alice", "research", gpus=8))


def stage(*looks: Mapping[str, JobSeen]) -> Stage:
    made = Stage(cast("Hand", Script(*looks)))
    made.jobs.append(JOB)
    return made


async def test_until_waits_and_tells_how_long() -> None:
    assert await stage({}, {"1": WAITS}, {"1": RUNS}).until(running([JOB]), 10) == 2


async def test_until_fails_with_what_was_seen() -> None:
    with pytest.raises(AssertionError, match=r"not within 3 s: 1 research/alice 1x8 waiting.*no words"):
        await stage({"1": WAITS}).until(running([JOB]), 3)


async def test_stays_fails_at_the_first_sample_that_differs() -> None:
    with pytest.raises(AssertionError, match="it must run did not stay true"):
        await stage({"1": RUNS}, {"1": RUNS}, {"1": WAITS}).stays(running([JOB]), 5, "it must run")


async def test_always_is_checked_at_every_sample() -> None:
    lab = stage({"1": WAITS}, {"1": RUNS}, {"1": WAITS})
    lab.always("nobody holds anything", lambda seen: seen.held_by("research") == 0)
    with pytest.raises(AssertionError, match="nobody holds anything"):
        await lab.comes(lambda seen: False, 5)


@pytest.mark.parametrize(("wrong", "plays"), [(TooLate("slow"), 2), (AssertionError("over the ceiling"), 1)])
async def test_only_what_came_too_late_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, wrong: AssertionError, plays: int
) -> None:
    played: list[Stage] = []

    async def scenario(lab: Stage) -> None:
        played.append(lab)
        if len(played) == 1:
            raise wrong

    async def nothing(lab: Stage) -> None: ...

    monkeypatch.setattr(Stage, "close", nothing)
    monkeypatch.setattr("tests.scenarios.play.scenarios", lambda: {"ceiling": [scenario]})
    result = await play("ceiling", cast("Hand", Script({})), tries=2)
    assert len(played) == plays
    assert (result.verdict is Verdict.FAILED) == (plays == 1)
    assert any("too late at try 1" in text for text in result.evidence) == (plays == 2)


async def test_what_is_held_is_kept_and_summed_over_time() -> None:
    lab = stage({"1": WAITS}, {"1": RUNS}, {"1": RUNS}, {"1": WAITS})
    await lab.comes(lambda seen: False, 5)
    assert lab.peak("research") == 8
    assert lab.peak("product") == 0
    assert lab.gpu_seconds("research") == 16  # at 1 s and at 2 s, until 3 s
    assert lab.gpu_seconds("research", beyond=6) == 4
    assert lab.gpu_seconds("research", since=2) == 8


async def test_taken_counts_lost_attempts_only() -> None:
    again = JobSeen(State.RUNNING, 2, ("n1",), 8)
    lost = JobSeen(State.WAITING, 1)
    assert [len(await stage({"1": seen}).taken([JOB])) for seen in (WAITS, RUNS, again, lost)] == [0, 0, 1, 1]


def test_least_needed() -> None:
    big, small, other = (Job(n, Order("bob", "product", gpus=g)) for n, g in (("b", 8), ("s", 2), ("o", 6)))
    held = {
        "b": JobSeen(State.RUNNING, 1, ("n1",), 8),
        "s": JobSeen(State.RUNNING, 1, ("n2",), 2),
        "o": JobSeen(State.RUNNING, 1, ("n2",), 6),
    }
    full = {n: JobSeen(State.RUNNING, 1, (n,), 8) for n in ("n3", "n4")}
    rest = [Job(n, Order("carol", "ops", gpus=8)) for n in full]
    seen = Sample(0, held | full, [big, small, other, *rest])
    assert least_needed(seen, (big, small, other), 2) == 2
    assert least_needed(seen, (big, small, other), 4) == 6
    assert least_needed(seen, (big, small, other), 8) == 8
    assert least_needed(Sample(0, held, [big, small, other]), (big,), 8) == 0  # two nodes are idle


def test_a_line_of_squeue() -> None:
    tres = "cpu=2,mem=2000M,node=2,billing=16,gres/gpu=16,gres/gpu:a100=16"
    assert job_seen("R", "0", tres, "None", "gpu[001-002]") == JobSeen(
        State.RUNNING, 1, ("gpu001", "gpu002"), 16
    )
    assert job_seen("PD", "1", "", "BeginTime", "") == JobSeen(State.WAITING, 1, reason="BeginTime")
    ending = job_seen("CG", "0", tres, "None", "gpu[001-002]")
    assert (ending.devices, ending.counted) == (16, 0)  # Slurm has given the quota back
    assert job_seen("CG", "0", tres, "None", "gpu001").devices == 8  # gpu002 is free, and others run there
    assert job_seen("TO", "0", tres, "TimeLimit", "gpu001") == JobSeen(State.ENDED, 1, reason="TO TimeLimit")
    assert job_seen("CD", "1", tres, "None", "gpu001").state is State.DONE


def test_lists_of_nodes() -> None:
    assert expanded("gpu[001-002,004],mig001") == ("gpu001", "gpu002", "gpu004", "mig001")
    assert expanded("") == ()


def test_words_of_sbatch() -> None:
    words = arguments(Order("bob", "product", gpus=2, nodes=3, limit_seconds=61, priority="low", last=True))
    assert {"--gres=gpu:2", "--nodes=3", "--time=2", "--qos=low", "--account=product"} <= set(words)
    assert not any(word.startswith("--account") for word in arguments(Order("bob")))


def test_results_are_merged_and_the_worst_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRWAY_PROMISES", str(tmp_path / "deep/promises.json"))
    assert results.load() == {}
    kept = Result(Verdict.KEPT, 1.23, ("started | after 1 s",))
    results.keep("guarantee", "virtual", kept)
    results.keep("guarantee", "kueue", Result(Verdict.CAVEAT, 2, ("x",), "but for y"))
    raw = json.loads((tmp_path / "deep/promises.json").read_text())
    assert raw["guarantee"]["virtual"] == {
        "verdict": "kept",
        "seconds": 1.2,
        "evidence": ["started | after 1 s"],
    }
    assert results.load()["guarantee"]["kueue"].exception == "but for y"
    assert worst([Verdict.KEPT, Verdict.DIFFERS, Verdict.CAVEAT]) is Verdict.DIFFERS
    page = table.page(results.load())
    assert "| kept | – | – | **caveat** |" in page
    assert "**guarantee** on Kueue, caveat: but for y" in page
    assert page.count("\n### ") == len(PROMISES)
