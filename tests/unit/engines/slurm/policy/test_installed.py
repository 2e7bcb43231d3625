"""Which job_submit.lua is installed: asked with jobs that Slurm refuses, answered by error numbers."""

from __future__ import annotations

from typing import Any, cast

from fairway.engines.port import Unreachable
from fairway.engines.slurm.policy.installed import (
    AGAIN_SECONDS,
    ANSWER,
    ANY,
    InstalledScript,
    differences_text,
    table_digests,
)
from fairway.engines.slurm.rest.client import JobResponse, SlurmRest
from fairway.engines.slurm.rest.wire import JobReply, ReplyError
from fairway.policy.objects import Advice
from fairway.policy.pending import pending_condition

NO_PARTITION = 2000
TABLES = ["local POOLS = {", "}", "local TEAMS = {", '  ["nlp"] = { },', '  ["ml_team"] = { },', "}"]


class Controller:
    """slurmctld with a script that has these digests; without any script, None."""

    def __init__(self, digests: dict[str, str] | None) -> None:
        self.digests = digests
        self.asked = 0
        self.ended: list[str] = []
        self.job_id = 0
        self.away: Unreachable | None = None

    async def request_jobs(self, method: str, resource: str, body: Any = None) -> JobResponse:
        if self.away is not None:
            raise self.away
        if method == "DELETE":
            self.ended.append(resource)
            return JobResponse(200, JobReply())
        self.asked += 1
        number = NO_PARTITION
        if self.digests is not None:
            items = [item.rsplit("=", 1) for item in body["job"]["comment"].split()]
            differ = [i for i, (name, digest) in enumerate(items, 1) if not self._has(name, digest)]
            number = ANSWER + (differ[0] if differ else 0)
        return JobResponse(500, JobReply(errors=(ReplyError(number),), job_id=self.job_id))

    def _has(self, name: str, digest: str) -> bool:
        mine = (self.digests or {}).get(name)
        return mine == digest or (mine is not None and digest == ANY)


def script(controller: Controller, clock: list[float] | None = None) -> InstalledScript:
    at = clock or [0.0]
    return InstalledScript(cast("SlurmRest", controller), clock=lambda: at[0])


WANTED = table_digests(TABLES, "script")


async def message(installed: dict[str, str] | None, wanted: dict[str, str] = WANTED) -> str:
    told = await script(Controller(installed)).advice("hpc", wanted)
    return "; ".join(c.message for c in pending_condition(told))


def test_every_table_and_every_team_has_its_digest() -> None:
    assert list(WANTED) == ["script", "POOLS", "TEAMS", "TEAMS/nlp", "TEAMS/ml_team", "count"]
    other = table_digests([*TABLES[:3], '  ["nlp"] = { 1 },', *TABLES[4:]], "script")
    assert [name for name in WANTED if WANTED[name] != other[name]] == ["TEAMS/nlp"]


async def test_a_script_as_rendered_needs_nothing() -> None:
    assert await message(WANTED) == ""


async def test_a_team_that_the_installed_script_does_not_know_is_named() -> None:
    installed = table_digests(TABLES[:4] + TABLES[5:], "script")
    expected = "job_submit.lua must be installed again: team ml_team unknown to it"
    assert await message(installed) == expected
    changed = {**WANTED, "TEAMS/nlp": "abc"}
    assert await message(changed) == "job_submit.lua must be installed again: team nlp changed since"


async def test_no_script_or_one_of_an_older_release_is_pending_too() -> None:
    assert "no job_submit.lua of Fairway answers" in await message(None)
    assert "another release" in await message({**WANTED, "script": "abc"})
    assert "teams that are gone" in await message({**WANTED, "TEAMS/gone": "abc", "count": "6"})


async def test_an_answer_is_believed_for_a_while_if_it_was_good() -> None:
    controller, now = Controller(WANTED), [0.0]
    asking = script(controller, now)
    await asking.advice("hpc", WANTED)
    await asking.advice("hpc", WANTED)
    assert controller.asked == 1
    now[0] = AGAIN_SECONDS
    controller.digests = None
    assert await asking.advice("hpc", WANTED) != ()
    assert await asking.advice("hpc", WANTED) != ()
    assert controller.asked == 3


async def test_a_job_that_a_script_of_the_site_let_through_is_ended() -> None:
    controller = Controller(None)
    controller.job_id = 17
    await script(controller).advice("hpc", WANTED)
    assert controller.ended == ["job/17"]


async def test_where_nobody_answers_the_script_is_not_called_missing() -> None:
    controller = Controller(WANTED)
    controller.away = Unreachable("ClusterUnreachable", "no connection", "scontrol ping")
    (told,) = await script(controller).advice("hpc", WANTED)
    assert told.unseen
    assert pending_condition([told]) == ()


def test_many_differences_are_cut() -> None:
    teams = [f"TEAMS/t{n}" for n in range(10)]
    assert differences_text(teams).endswith("and more")


def test_the_condition_has_a_diff_of_what_is_installed() -> None:
    (pending,) = pending_condition(
        [
            Advice("slurm.conf", "PreemptType=preempt/qos", "preempt/none", "why", "scontrol reconfigure"),
            Advice("slurmdbd.conf", "PrivateData=jobs", "", "why", unseen=True),
        ]
    )
    assert pending.message == "slurm.conf must still get 1 line"
    assert pending.hint.endswith("scontrol reconfigure")
    assert pending.detail.splitlines() == [
        "--- slurm.conf (installed)",
        "+++ slurm.conf (needed)",
        "-preempt/none",
        "+PreemptType=preempt/qos",
    ]
