"""Every page there is, by name; those of one pool, job or apply are found by asking the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from tests.pages.served import Served


def _job(state: str, *, own: bool = False, others: bool = False) -> Callable[[Served], str]:
    """One in that state with a story to tell; of those alike, the largest.

    `own`: that prints for us; `others`: that is not alice's, who visits every page as a member.
    """

    def address(served: Served) -> str:
        found = served.ask("/v1/jobs", state=state, limit=200)["items"]
        found = [
            job for job in found if not (own and job["native"]) and not (others and job["user"] == "alice")
        ]
        if state == "waiting":  # one that does not start while it is looked at
            return f"/jobs/{max(found, key=lambda job: job['devices'])['id']}"
        return f"/jobs/{max(found, key=lambda job: (min(job['attempt_count'], 4), job['gpus']))['id']}"

    return address


def _pool(sliced: bool) -> Callable[[Served], str]:
    def address(served: Served) -> str:
        pools = served.ask("/v1/pools")["items"]
        return next(f"/pools/{p['name']}" for p in pools if bool(p["slices"]) is sliced)

    return address


def _apply(served: Served) -> str:
    """The newest that changed a line of the file."""
    found = served.ask("/v1/applies", limit=20)["items"]
    changed = (a for a, before in pairwise(found) if a["revision"] != before["revision"])
    return f"/policy/history/{next(changed, found[0])['id']}"


PAGES: Final[Mapping[str, Callable[[Served], str]]] = {
    "home": lambda _: "/",
    "fleet": lambda _: "/fleet",
    "pool": _pool(sliced=False),
    "pool-sliced": _pool(sliced=True),
    "teams": lambda _: "/teams",
    "team": lambda served: f"/teams/{served.ask('/v1/teams')['items'][0]['name']}",
    "jobs": lambda _: "/jobs",
    "jobs-none": lambda _: "/jobs?q=no-job-is-called-so",
    "job-new": lambda _: "/jobs/new",
    "job-running": _job("running"),
    "job-waiting": _job("waiting"),
    "job-done": _job("done"),
    "job-log": lambda served: _job("running", own=True, others=True)(served) + "/log",
    "job-cancel": lambda served: _job("running", others=True)(served) + "/cancel",
    "cost": lambda _: "/cost",
    "cost-waste": lambda _: "/cost?what=waste&by=pool",
    "cost-month": lambda _: f"/cost/months/{datetime.now(UTC):%Y-%m}",
    "policy": lambda _: "/policy",
    "policy-revisions": lambda _: "/policy/revisions",
    "policy-revision": lambda _: "/policy/revisions/1",
    "policy-history": lambda _: "/policy/history",
    "policy-apply": _apply,
    "policy-plan": lambda _: "/policy/plan",
    "policy-what-if": lambda _: "/policy/what-if",
    "search": lambda _: "/search?q=a",
    "server": lambda _: "/server",
    "no-such-job": lambda _: "/jobs/zzzz",
    "no-such-pool": lambda _: "/pools/no-such-pool",
}
