"""The tour explains a job that it printed, and shows a plan, costs and a page."""

from __future__ import annotations

from pathlib import Path

from fairway.demo.tour import printed_job, steps_of

TABLE = """\
JOB   NAME       STATE    GPUS  POOL        TEAM    USER  AGE  RAN  NOTE
11vj  debug-186  waiting     1  hpc-a100    nlp     noor  1 s    -  no node of hpc-a100…
11vc  train-180  waiting     8  hpc-h100    nlp     bela  9 s    -
"""


def test_a_printed_job_is_explained() -> None:
    assert printed_job(TABLE) == "11vc", "the largest: most is to be said of it"
    assert printed_job(TABLE.splitlines()[0]) is None
    assert printed_job("") is None


def test_its_steps() -> None:
    steps = steps_of(Path("fleet.yaml"), Path("tour.plan"))
    commands = [step.args for step in steps]
    assert ("why", "WAITING") in commands
    assert ("describe", "job", "RUNNING") in commands
    assert ("get", "drift") in commands
    assert commands.index(("plan", "-f", "fleet.yaml", "--out", "tour.plan")) < commands.index(
        ("apply", "tour.plan", "--yes")
    )
    assert commands[-1] == (), "the last one is in a browser"
