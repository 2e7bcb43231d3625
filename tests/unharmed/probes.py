"""What people try on a Slurm site with Slurm's own tools, and what comes of it."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.waiting import Deadline, until

if TYPE_CHECKING:
    from lab.instance import Instance

LIKELY_TO_GO = {"None", "Priority", "Resources", "BeginTime", "QOSMaxJobsPerUserLimit", "(null)", ""}
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
    runs_as: str = ""
    """Its account and QOS."""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.result, self.words, self.time_limit, self.runs_as)))


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
        yield Probe(user, where)  # the time that the partition gives
        yield Probe(user, (*where, "--gres=gpu:1"))
    for name, (owner, account) in _owners(instance, qos).items():
        for partition in partitions:
            named = (f"--account={account}", f"--partition={partition}", f"--qos={name}", "--time=1")
            yield Probe(owner, named)
            yield Probe(owner, (*named, "--gres=gpu:1"))
    for others in pairwise(partitions):
        where = (*mine, f"--partition={','.join(others)}")
        yield Probe(user, (*where, "--time=1"))
        yield Probe(user, (*where, "--time=1", "--gres=gpu:1"))
    strangers = [u for u in people if accounts[0] and accounts[0] not in people[u]]
    for stranger in strangers:
        yield Probe(stranger, (*mine, "--time=1", "--gres=gpu:1"))
        yield Probe(stranger, (*mine, "--time=1"))


def _owners(instance: Instance, qos: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Somebody with an account that may use it, for each QOS."""
    found: dict[str, tuple[str, str]] = {}
    for row in _rows(instance, "assoc", "account,user,qos"):
        account, user, listed = row.split("|")
        if user not in ("", "root", "fairway"):
            for name in set(listed.split(",")).intersection(qos):
                found.setdefault(name, (user, account))
    return found


@dataclass(frozen=True, slots=True)
class Harm:
    """A probe that came out otherwise than before."""

    probe: Probe
    before: Outcome
    after: Outcome

    def __str__(self) -> str:
        return f"{self.probe}: {self.before} -> {self.after}"


def harms(
    before: Mapping[Probe, Outcome], after: Mapping[Probe, Outcome], is_governed: Callable[[Probe], bool]
) -> list[Harm]:
    """What a policy may not change: other work not at all, governed work only to less than it had."""
    return [
        Harm(probe, was, after[probe])
        for probe, was in before.items()
        if not _same(probe, was, after[probe]) and not (is_governed(probe) and _no_more(was, after[probe]))
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


def _same(probe: Probe, was: Outcome, now: Outcome) -> bool:
    """Whether a probe came out the same; which of several reasons to wait Slurm gives first is chance."""
    if was.result is Result.WAITS and now.result is Result.WAITS:
        was = replace(was, words=now.words)
    if "--exclusive" in probe.options:  # it gets the GPUs of its nodes, and may run as a team's job
        was = replace(was, runs_as=now.runs_as)
    return now == was


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


@dataclass(frozen=True, slots=True)
class Kept:
    """A job that was there before Fairway, and its place: where and since when, or until when."""

    number: str
    options: tuple[str, ...]
    place: tuple[str, ...]

    def moved(self, instance: Instance) -> Iterator[str]:
        """Yield what has become of it, if it has lost its place."""
        if (now := _place(_jobs(instance).get(self.number, {}))) != self.place:
            yield f"{' '.join(self.options)}: {' '.join(self.place)} -> {' '.join(now)}"


def keep_jobs(instance: Instance, outcomes: Mapping[Probe, Outcome]) -> list[Kept]:
    """Submit jobs like those that ran, with GPUs and without: one that runs, one that waits for a day."""
    ran = [probe for probe, outcome in outcomes.items() if outcome.result is Result.RAN]
    kept = []
    for has_gpus in (True, False):
        probe = next(p for p in ran if ("--gres=gpu:1" in p.options) is has_gpus)
        for begin, state in (("now", "RUNNING"), ("now+1day", "PENDING")):
            node = f"--nodelist={_roomy_node(instance, probe)}"
            options = (*probe.options, node, f"--begin={begin}", "--time=29")
            command = ("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap=sleep 1700")
            number = instance.run(*command, user=probe.user).stdout.strip().partition(";")[0]
            until(partial(_is, instance, number, state), 60, f"{number} is {state}")
            kept.append(Kept(number, options, _place(_jobs(instance)[number])))
    return kept


def _roomy_node(instance: Instance, probe: Probe) -> str:
    """A node where a probe can run whose partitions all have others, so that probes have room beside it."""
    rows = [row.split("|") for row in instance.run("sinfo", "-hN", "-o", "%N|%P|%T").stdout.splitlines()]
    asked = next((o.partition("=")[2] for o in probe.options if o.startswith("--partition=")), "")
    sizes = Counter(partition for _, partition, _ in rows)
    least: dict[str, int] = {}
    for node, partition, _ in rows:
        least[node] = min(sizes[partition], least.get(node, sizes[partition]))
    usable = [
        node
        for node, partition, state in rows
        if state in ("idle", "mixed", "planned")
        and (partition.rstrip("*") == asked or (not asked and partition[-1] == "*"))
    ]
    return max(usable, key=lambda node: least[node])


def _is(instance: Instance, number: str, state: str) -> bool:
    return _jobs(instance).get(number, {}).get("JobState") == state


def _place(job: Mapping[str, str]) -> tuple[str, ...]:
    keys = ("JobState", "SubmitTime", "StartTime", "Account", "TimeLimit", "NodeList")
    return tuple(f"{key}={job.get(key, '')}" for key in keys)


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
    runs_as = f"{job.get('Account', '')}/{job.get('QOS', '')}"
    if state in ("COMPLETED", "RUNNING", "COMPLETING"):
        return Outcome(Result.RAN, "", limit, runs_as)
    if state == "PENDING":
        return Outcome(Result.WAITS, reason, limit, runs_as)
    return Outcome(Result.REFUSED, f"{state} {reason}", limit)


def _jobs(instance: Instance) -> dict[str, dict[str, str]]:
    rows = instance.run("scontrol", "--oneliner", "show", "jobs", check=False).stdout.splitlines()
    return {job["JobId"]: job for row in rows if (job := dict(JOB.findall(row))).get("JobId")}


def _rows(instance: Instance, what: str, columns: str) -> list[str]:
    done = instance.run("sacctmgr", "-nP", "show", what, f"format={columns}", check=False)
    return done.stdout.split() if done.returncode == 0 else []
