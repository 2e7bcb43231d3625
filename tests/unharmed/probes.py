"""What people try on a Slurm site with Slurm's own tools, and what comes of it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.waiting import Deadline

if TYPE_CHECKING:
    from lab.instance import Instance

LIKELY_TO_GO = {"None", "Priority", "Resources", "BeginTime", "(null)", ""}
"""Reasons with which a job waits that starts in a moment."""
JOB = re.compile(r"(\w+)=(\S*)")
WAIT_SECONDS = 60.0
CALM_SECONDS = 5.0
"""Slurm looks at waiting jobs again within this time after another has ended."""


class Result(StrEnum):
    """What came of a probe."""

    RAN = "ran"
    REFUSED = "refused"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class Probe:
    """One job that somebody submits."""

    user: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.user}: sbatch {' '.join(self.options)}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a probe, in Slurm's words."""

    result: Result
    words: str = ""
    time_limit: str = ""

    def __str__(self) -> str:
        return f"{self.result} {self.words}".strip()


def probes_of(instance: Instance) -> list[Probe]:
    """Everybody in each account on each partition, with and without GPUs, within limits and beyond."""
    partitions = instance.run("sinfo", "--noheader", "--format=%R").stdout.split()
    return list(dict.fromkeys(_everybody(instance, partitions)))


def _everybody(instance: Instance, partitions: Sequence[str]) -> Iterator[Probe]:
    qos = _rows(instance, "qos", "name")
    associations = [
        row.split("|") for row in _rows(instance, "assoc", "account,user") if row.split("|")[1]
    ] or [["", user] for user in ("alice", "bob")]
    people = {user: [a for a, u in associations if u == user] for _, user in associations}
    people = {user: mine for user, mine in people.items() if user not in ("root", "fairway")}
    for user, accounts in people.items():
        yield Probe(user, ("--ntasks=1", "--time=1"))
        yield Probe(user, ("--gres=gpu:1", "--time=1"))
        for account in filter(None, accounts):
            for partition in partitions:
                where = (f"--account={account}", f"--partition={partition}")
                yield Probe(user, (*where, "--time=1"))
                yield Probe(user, (*where, "--time=1", "--gres=gpu:1"))
                yield Probe(user, (*where, "--time=30-0", "--gres=gpu:1"))
                yield Probe(user, (*where, "--time=30-0"))
    user, accounts = next(iter(people.items()))
    mine = (f"--account={accounts[0]}",) if accounts[0] else ()
    for name in qos:
        yield Probe(user, (*mine, f"--qos={name}", "--time=1"))
    for partition in partitions:
        where = (*mine, f"--partition={partition}")
        yield Probe(user, (*where, "--time=1", "--nodes=3", "--gres=gpu:1"))
        yield Probe(user, (*where, "--time=1", "--gres=gpu:16"))
        yield Probe(user, (*where, "--time=1", "--mem=900G"))
        yield Probe(user, (*where, "--time=1", "--exclusive"))
        for gpus in ((), ("--gres=gpu:1",)):
            yield Probe(user, (*where, *gpus))  # the time that the partition gives
            for name in qos:
                yield Probe(user, (*where, *gpus, f"--qos={name}", "--time=1"))
    for others in pairwise(partitions):
        where = (*mine, f"--partition={','.join(others)}")
        yield Probe(user, (*where, "--time=1"))
        yield Probe(user, (*where, "--time=1", "--gres=gpu:1"))
    strangers = [u for u in people if accounts[0] and accounts[0] not in people[u]]
    for stranger in strangers:
        yield Probe(stranger, (*mine, "--time=1", "--gres=gpu:1"))
        yield Probe(stranger, (*mine, "--time=1"))


@dataclass(frozen=True, slots=True)
class Harm:
    """A probe that came out otherwise than before."""

    probe: Probe
    before: Outcome
    after: Outcome

    def __str__(self) -> str:
        return f"{self.probe}: {self.before} {self.before.time_limit} -> {self.after} {self.after.time_limit}"


def harms(
    before: Mapping[Probe, Outcome], after: Mapping[Probe, Outcome], is_governed: Callable[[Probe], bool]
) -> list[Harm]:
    """What a policy may not change: other work not at all, governed work only to less than it had."""
    return [
        Harm(probe, was, after[probe])
        for probe, was in before.items()
        if not _same(was, after[probe]) and not (is_governed(probe) and _no_more(was, after[probe]))
    ]


def _no_more(was: Outcome, now: Outcome) -> bool:
    """Whether a job that was refused does not run now, and one that ran has no more time than it had."""
    if was.result is Result.RAN:
        return now.result is not Result.RAN or _minutes(now.time_limit) <= _minutes(was.time_limit)
    return now.result is not Result.RAN


def _minutes(limit: str) -> float:
    """A time as `scontrol` shows it: `UNLIMITED`, `7-00:00:00`, `00:30:00`."""
    if limit in ("", "UNLIMITED"):
        return math.inf
    days, _, clock = limit.rpartition("-")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60


def _same(was: Outcome, now: Outcome) -> bool:
    """Whether a probe came out the same; which of several reasons to wait Slurm gives first is chance."""
    both_wait = was.result is Result.WAITS and now.result is Result.WAITS
    return now == (replace(was, words=now.words) if both_wait else was)


def play(instance: Instance, probes: Sequence[Probe]) -> dict[Probe, Outcome]:
    """Submit every probe, wait until each has run or has a reason to wait, and cancel what is left."""
    outcomes: dict[Probe, Outcome] = {}
    submitted: dict[str, Probe] = {}
    for probe in probes:
        command = ("sbatch", "--parsable", "--output=/dev/null", *probe.options, "--wrap=true")
        done = instance.run(*command, user=probe.user, check=False)
        if done.returncode:
            outcomes[probe] = Outcome(Result.REFUSED, done.stderr.strip().splitlines()[-1])
        else:
            submitted[done.stdout.strip().partition(";")[0]] = probe
    jobs = _settled(instance, submitted)
    outcomes |= {probe: _outcome(jobs.get(number, {})) for number, probe in submitted.items()}
    if submitted:
        instance.run("scancel", *submitted, check=False)
    return outcomes


def _settled(instance: Instance, numbers: Iterable[str]) -> dict[str, dict[str, str]]:
    """The jobs once each has ended or waits for something that no other probe holds."""
    deadline, calm = Deadline(WAIT_SECONDS), Deadline(CALM_SECONDS)
    while not (deadline.passed or calm.passed):
        jobs = _jobs(instance)
        if any(_moves(jobs.get(number, {})) for number in numbers):
            calm = Deadline(CALM_SECONDS)
        time.sleep(0.2)
    return jobs


def _moves(job: Mapping[str, str]) -> bool:
    state = job.get("JobState")
    return state in ("RUNNING", "COMPLETING", "CONFIGURING") or (
        state == "PENDING" and job.get("Reason") in LIKELY_TO_GO
    )


def _outcome(job: Mapping[str, str]) -> Outcome:
    state, reason, limit = (job.get(key, "") for key in ("JobState", "Reason", "TimeLimit"))
    if state in ("COMPLETED", "RUNNING", "COMPLETING"):
        return Outcome(Result.RAN, time_limit=limit)
    if state == "PENDING":
        return Outcome(Result.WAITS, reason, limit)
    return Outcome(Result.REFUSED, f"{state} {reason}", limit)


def _jobs(instance: Instance) -> dict[str, dict[str, str]]:
    rows = instance.run("scontrol", "--oneliner", "show", "jobs", check=False).stdout.splitlines()
    return {job["JobId"]: job for row in rows if (job := dict(JOB.findall(row))).get("JobId")}


def _rows(instance: Instance, what: str, columns: str) -> list[str]:
    done = instance.run("sacctmgr", "-nP", "show", what, f"format={columns}", check=False)
    return done.stdout.split() if done.returncode == 0 else []
