"""Find out which job_submit.lua is installed, through slurmrestd alone (ADR 0039).

The rendered script has a digest of each of its tables. Fairway submits a job that Slurm must refuse, whose
comment lists the digests it expects; the script answers with a number, the first item that differs, for
slurmrestd passes on the error number of a refusal and none of its text. No job is created, whatever script is
installed: partition, account and reservation of the request do not exist.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from fairway.engines.slurm.rest.client import SlurmRest
from fairway.model.errors import FairwayError
from fairway.policy.objects import Advice

PROBE_JOB: Final = "fairway-installed"
"""The name of the job that the script answers."""
ANSWER: Final = 770_000_000
"""The error number of "as expected"; item n that differs is this plus n. Far above those of slurm_errno.h."""
NOWHERE: Final = "fairway-no-such"
"""The partition, account and reservation that the request names: none of them exists."""
ANY: Final = "0"
"""The digest that every table fits: such an item differs only if the script does not have it."""
SCRIPT, COUNT, TEAMS = "script", "count", "TEAMS/"
CHUNK: Final = 400
"""Items of one request."""
MAX_LISTED: Final = 10
"""Differing items to ask for: a longer list has no use."""
AGAIN_SECONDS: Final = 300.0
"""How long an answer "as expected" is believed: each question is a line in slurmctld's log."""

_TABLE: Final = re.compile(r"local (\w+)")
_ENTRY: Final = re.compile(r'  \["(.+?)"\] = ')


def table_digests(tables: Iterable[str], script: str) -> dict[str, str]:
    """Return a digest of each table of a rendered script, of each team of TEAMS, and of the script itself."""
    parts: dict[str, list[str]] = {SCRIPT: [script]}
    table = ""
    for line in tables:
        if begins := _TABLE.match(line):
            table = begins[1]
        entry = _ENTRY.match(line) if f"{table}/" == TEAMS else None
        parts.setdefault(f"{TEAMS}{entry[1]}" if entry else table, []).append(line)
    digests = {name: _digest("\n".join(lines)) for name, lines in parts.items()}
    return digests | {COUNT: f"{len(digests):x}"}  # last: it differs if the installed one has more


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class InstalledScript:
    """Compares the installed job_submit.lua of one cluster with the one that a fleet needs."""

    def __init__(self, rest: SlurmRest, *, clock: Callable[[], float] = monotonic) -> None:
        self._rest = rest
        self._clock = clock
        self._equal: tuple[Mapping[str, str], float] | None = None
        """The digests that were last found installed, and until when that is believed."""

    async def advice(self, cluster: str, digests: Mapping[str, str]) -> tuple[Advice, ...]:
        """Return advice to install the script if another one, or none, is installed. Empty if it is there."""
        if self._equal is not None and self._equal[0] == digests and self._clock() < self._equal[1]:
            return ()
        try:
            differing = await self._differing(digests)
            changed = [name for name in differing or () if name.startswith(TEAMS)]
            unknown = await self._differing(dict.fromkeys(changed, ANY)) or ()
        except FairwayError as error:
            return (_advice(cluster, f"whether it is installed is not known: {error.message}", unseen=True),)
        self._equal = (digests, self._clock() + AGAIN_SECONDS) if differing == () else None
        if differing is None:
            return (_advice(cluster, "no job_submit.lua of Fairway answers"),)
        return (_advice(cluster, differences_text(differing, unknown)),) if differing else ()

    async def _differing(self, digests: Mapping[str, str]) -> tuple[str, ...] | None:
        """Return the first items that differ in the installed script. Returns None if none answers."""
        items, start = list(digests.items()), 0
        found: list[str] = []
        while start < len(items) and len(found) < MAX_LISTED:
            chunk = items[start : start + CHUNK]
            number = await self._ask(chunk)
            if number is None:
                return None
            if number:
                found.append(chunk[number - 1][0])
            start += number or len(chunk)
        return tuple(found)

    async def _ask(self, items: Sequence[tuple[str, str]]) -> int | None:
        response = await self._rest.request_jobs("POST", "job/submit", probe(items))
        if response.reply.job_id:  # a script of the site sent it somewhere else: end it at once
            await self._rest.request_jobs("DELETE", f"job/{response.reply.job_id}")
        for error in response.reply.errors:
            if ANSWER <= error.error_number <= ANSWER + len(items):
                return error.error_number - ANSWER
        return None


def probe(items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return a submission that Slurm must refuse, with the digests to compare in its comment."""
    return {
        "job": {
            "name": PROBE_JOB,
            "partition": NOWHERE,
            "account": NOWHERE,
            "reservation": NOWHERE,
            "hold": True,
            "comment": " ".join(f"{name}={digest}" for name, digest in items),
            "current_working_directory": "/",
            "environment": ["PATH=/usr/bin:/bin"],
            "script": "#!/bin/sh\nexit 0\n",
        }
    }


def differences_text(differing: Sequence[str], unknown: Collection[str] = ()) -> str:
    """Describe what the installed script has otherwise than it should; `unknown` teams it does not have."""
    more = " and more" if len(differing) >= MAX_LISTED else ""
    teams = [name for name in differing if name.startswith(TEAMS)]
    parts = [
        f"{'team' if len(names) == 1 else 'teams'} {', '.join(n.removeprefix(TEAMS) for n in names)} {text}"
        for names, text in (
            ([n for n in teams if n in unknown], "unknown to it"),
            ([n for n in teams if n not in unknown], "changed since"),
        )
        if names
    ]
    if not parts and SCRIPT in differing:
        parts = ["it is of another release of Fairway"]
    if not parts and differing == (COUNT,):
        parts = ["it has teams that are gone"]
    return ", ".join(parts or [f"its {', '.join(differing)} differ"]) + more


def _advice(cluster: str, problem: str, *, unseen: bool = False) -> Advice:
    render = f"fairway render slurm -f fleet.yaml --cluster {cluster} --out DIR"
    return Advice(
        "job_submit.lua",
        f"-- {problem}\n-- install the whole file:  {render}",
        problem,
        "plain sbatch gets its team's QOS; a team that the installed script does not know cannot submit",
        unseen=unseen,
    )
