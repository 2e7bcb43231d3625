"""Jobs through the app: over a real ledger, placed by the real submitter; no loop sends them anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx2
import psycopg
import pytest
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobFilter
from fairway.model.access import Role
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.job import format_job_id, parse_job_id
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Grant, Supply, Team
from fairway.policy.plan import compute_changes
from fairway.server.engines import EngineFactory
from fairway.server.services import build_job_services
from fairway.services.fleets import Fleets
from fairway.services.jobs import OpenJobLimits
from tests.unit.api.conftest import bearer, build_policy_services
from tests.unit.api.governed import Memory

PRIORITIES = (PriorityName("normal"), PriorityName("low"))
GRANTS = (Grant(Supply(PoolName("lab-a100")), 8),)


def team(name: str, *members: str) -> Team:
    people = tuple(UserName(m) for m in members)
    return Team(TeamName(name), grants=GRANTS, priorities=PRIORITIES, members=people)


FLEET = Fleet(
    "acme",
    "USD",
    (Cluster(ClusterName("lab"), VirtualConnection()),),
    (
        Pool(
            PoolName("lab-a100"),
            ClusterName("lab"),
            GpuType("A100-80GB", 80),
            Capacity.OWNED,
            Decimal("1.90"),
            VirtualPlace(4),
        ),
    ),
    (team("nlp", "alice", "bob"), team("vision", "carol")),
)
HELLO = {"name": "hello", "command": ["echo", "hello"]}


@pytest.fixture
async def http(ledger: Ledger) -> AsyncIterator[httpx2.AsyncClient]:
    await ledger.revisions.add("the text does not matter here", "digest", "test")
    engines = EngineFactory()
    engine = engines(FLEET.clusters[0], FLEET.pools)
    found = await engine.find_policy()
    for change in compute_changes(engine.translate(FLEET, found), found):
        assert [c async for c in engine.write([change])]
    limits = OpenJobLimits(user=30, team=50)
    fleets = Fleets(ledger, lambda _: FLEET)
    async with build_job_services(ledger, engines, fleets, limits=limits) as parts:
        app = create_app(
            ledger,
            CollectorRegistry(),
            Fleets(ledger, lambda _: FLEET),
            build_policy_services(Memory()),
            parts,
        )
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://fairway.test") as client:
            yield client


@pytest.fixture
async def alice(ledger: Ledger) -> dict[str, str]:
    return await bearer(ledger, Role.MEMBER, "alice")


async def submit(
    http: httpx2.AsyncClient, who: dict[str, str], *jobs: dict[str, Any], **more: Any
) -> list[dict[str, Any]]:
    answer = await http.post("/v1/jobs", headers=who, json={"jobs": list(jobs), **more})
    assert answer.status_code == 201, answer.text
    found: list[dict[str, Any]] = answer.json()["jobs"]
    return found


async def test_a_job_from_asking_to_its_end(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    (made,) = await submit(http, alice, HELLO | {"env": {"A": "b"}, "gpus": {"count": 2, "model": "A100"}})
    assert made["ids"] == [made["id"]]
    assert made["placement"]["pool"] == "lab-a100"
    assert made["placement"]["why"]
    seen = (await http.get(f"/v1/jobs/{made['id'].upper()}", headers=alice)).json()
    assert (seen["state"], seen["user"], seen["team"], seen["gpus"]) == ("queued", "alice", "nlp", 2)
    assert seen["spec"]["env"] == {"A": "b"}
    assert seen["placement_reason"] == made["placement"]["why"]
    assert [e["kind"] for e in seen["events"]] == ["submitted"]
    log = (await http.get(f"/v1/jobs/{made['id']}/log", headers=alice)).json()
    assert log == {"attempt": 0, "text": "", "offset": 0, "next_offset": 0, "ended": False}
    counts = (await http.get("/v1/jobs/counts", headers=alice)).json()["counts"]
    assert [(c["state"], c["jobs"], c["devices"], c["team"]) for c in counts] == [("queued", 1, 2, "nlp")]
    waits = (await http.get("/v1/waits?pool=lab-a100&team=nlp", headers=alice)).json()["reasons"]
    assert [(w["code"], w["jobs"], w["devices"], w["largest"]) for w in waits] == [("", 1, 2, [made["id"]])]
    for wrong, code in (("pool=none", "NoSuchPool"), ("team=none", "NoSuchTeam")):
        refused = await http.get(f"/v1/waits?{wrong}", headers=alice)
        assert (refused.status_code, refused.json()["code"]) == (404, code)
    states = (await http.get(f"/v1/jobs/states?id={made['id']}", headers=alice)).json()
    assert states == {"states": {made["id"]: "queued"}}
    missing = await http.get(f"/v1/jobs/states?id={made['id']}&id=zzzz", headers=alice)
    assert (missing.status_code, missing.json()["code"]) == (404, "NoSuchJob")
    gone = (await http.post("/v1/jobs/cancel", headers=alice, json={"jobs": [made["id"]]})).json()
    assert gone == {"changed": [made["id"]], "unchanged": []}
    again = (await http.post("/v1/jobs/cancel", headers=alice, json={"jobs": [made["id"]]})).json()
    assert again == {"changed": [], "unchanged": [made["id"]]}
    assert (await http.get(f"/v1/jobs/{made['id']}", headers=alice)).json()["state"] == "cancelled"


async def test_the_same_key_makes_nothing_twice(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    first = await submit(http, alice, HELLO, HELLO, key="mine")
    assert [j["ids"] for j in await submit(http, alice, HELLO, HELLO, key="mine")] == [
        j["ids"] for j in first
    ]
    assert len(await ledger.jobs.page(JobFilter())) == 2
    other = await http.post(
        "/v1/jobs", headers=alice, json={"jobs": [HELLO | {"name": "other"}], "key": "mine"}
    )
    assert (other.status_code, other.json()["code"]) == (409, "KeyReused")
    bob = await bearer(ledger, Role.MEMBER, "bob")
    assert (await submit(http, bob, HELLO, key="mine"))[0]["id"] not in {j["id"] for j in first}


async def test_an_array_is_as_many_jobs_and_one_to_cancel(
    http: httpx2.AsyncClient, alice: dict[str, str]
) -> None:
    (made,) = await submit(http, alice, HELLO | {"array": [3, 5, 7]}, hold=True)
    assert len(made["ids"]) == 3
    listed = (await http.get(f"/v1/jobs?array={made['id']}", headers=alice)).json()["items"]
    assert sorted((j["id"], j["array"], j["array_index"], j["state"]) for j in listed) == [
        (id_, made["id"], index, "held") for id_, index in zip(made["ids"], (3, 5, 7), strict=True)
    ]
    second = made["ids"][1]
    changed = (await http.post("/v1/jobs/release", headers=alice, json={"jobs": [second]})).json()
    assert changed["changed"] == [second]
    counted = (await http.get(f"/v1/jobs/{second}/tasks", headers=alice)).json()
    assert counted == {"tasks": 3, "counts": {"held": 2, "queued": 1}}
    gone = (await http.post("/v1/jobs/cancel", headers=alice, json={"jobs": [made["id"]]})).json()
    assert gone["changed"] == made["ids"]


async def test_lists_page_and_filter(http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]) -> None:
    carol = await bearer(ledger, Role.MEMBER, "carol")
    for i in range(5):
        await submit(http, alice, HELLO | {"name": f"a{i}"})
    (held,) = await submit(http, carol, HELLO | {"name": "c"}, hold=True)
    found, cursor = [], None
    for _ in range(9):
        params = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = (await http.get("/v1/jobs", params=params, headers=alice)).json()
        found += [j["name"] for j in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == ["c", "a4", "a3", "a2", "a1", "a0"]

    async def names(query: str) -> list[str]:
        answer = await http.get(f"/v1/jobs?{query}", headers=alice)
        assert answer.status_code == 200, answer.text
        return [j["name"] for j in answer.json()["items"]]

    soon = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert await names("team=vision") == ["c"]
    assert await names("user=carol&state=held") == ["c"]
    assert await names("state=ended") == []
    assert len(await names("state=open")) == 6
    assert await names("state=queued&state=ended&name=a3") == ["a3"]
    assert await names("pool=none") == []
    assert len(await names("cluster=lab&native=false")) == 6
    assert await names(f"since={soon}") == []
    assert len(await names(f"until={soon}")) == 6
    assert len(await names("window=7d")) == 6
    assert await names("window=2020-01") == []
    assert await names("search=A3") == ["a3"]
    assert await names("search=carol") == ["c"]
    assert await names(f"search={held['id']}") == ["c"]
    assert format_job_id(parse_job_id(held["id"]) or 0) == held["id"]


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("state=sleeping", "query.state"),
        ("since=yesterday", "query.since"),
        ("since=2026-01-01T00:00:00", "query.since"),
        ("limit=0", "query.limit"),
        ("cursor=x", ""),
        ("window=sometime", ""),
    ],
)
async def test_filters_that_mean_nothing(
    http: httpx2.AsyncClient, alice: dict[str, str], query: str, where: str
) -> None:
    answer = await http.get(f"/v1/jobs?{query}", headers=alice)
    assert answer.status_code == 422
    assert answer.json()["hint"]
    assert any(f["where"].startswith(where) for f in answer.json()["faults"]) or not where


@pytest.mark.parametrize("word", ["zzzz", "x", "8f3!", "ä" * 5, "z" * 12, "0000", "%00aaaa", "z" * 300])
async def test_no_such_job(http: httpx2.AsyncClient, alice: dict[str, str], word: str) -> None:
    for path in (f"/v1/jobs/{word}", f"/v1/jobs/{word}/log", f"/v1/jobs/{word}/tasks"):
        answer = await http.get(path, headers=alice)
        assert (answer.status_code, answer.json()["code"]) == (404, "NoSuchJob"), answer.text


async def test_names_and_engine_ids_wherever_an_id_is(
    http: httpx2.AsyncClient, alice: dict[str, str], database_url: str
) -> None:
    first, second = await submit(http, alice, HELLO | {"name": "first-job"}, HELLO | {"name": "second-job"})
    number = parse_job_id(second["id"])
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("INSERT INTO engine_job VALUES ('lab', 'nlp/second', %s, 1, 0, false)", (number,))
    for word in ("second-job", "nlp/second", "lab/nlp/second", "lab%2Fnlp%2Fsecond"):
        for path in ("", "/why", "/tasks", "/use", "/log"):
            answer = await http.get(f"/v1/jobs/{word}{path}", headers=alice)
            assert answer.status_code == 200, answer.text
        assert (await http.get(f"/v1/jobs/{word}", headers=alice)).json()["id"] == second["id"]
    assert (await http.get("/v1/jobs?array=second-job", headers=alice)).json()["items"] == []
    assert (await http.get("/v1/jobs?array=nobody", headers=alice)).json()["code"] == "NoSuchJob"
    (third,) = await submit(http, alice, HELLO | {"after": [{"job": "lab/nlp/second"}]})
    told = (await http.get(f"/v1/jobs/{third['id']}", headers=alice)).json()
    assert told["spec"]["after"] == [{"job": second["id"], "when": "ok"}]
    words = {"jobs": ["first-job", "lab/nlp/second"]}
    held = await http.post("/v1/jobs/hold", headers=alice, json=words)
    assert held.json()["changed"] == [first["id"], second["id"]]
    cancelled = await http.post("/v1/jobs/cancel", headers=alice, json=words)
    assert cancelled.json()["changed"] == [first["id"], second["id"]]


async def test_refusals_say_which_and_why(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    async def refused(body: dict[str, Any]) -> tuple[int, str]:
        answer = await http.post("/v1/jobs", headers=alice, json=body)
        assert answer.json()["hint"]
        return answer.status_code, answer.json()["code"]

    assert await refused({"jobs": [HELLO], "as": "bob"}) == (403, "RoleTooLow")
    assert await refused({"jobs": [HELLO | {"team": "vision"}]}) == (403, "NotAMember")
    assert await refused({"jobs": [HELLO | {"priority": "urgent"}]}) == (403, "PriorityNotAllowed")
    assert await refused({"jobs": [HELLO | {"pool": "nowhere"}]}) == (422, "NoSuchPool")
    assert await refused({"jobs": [HELLO | {"gpus": {"model": "H100"}}]}) == (422, "NoPoolFits")
    assert await refused({"jobs": [HELLO, HELLO | {"gpus": {"count": 16}}]}) == (422, "NoPoolFits")
    assert await refused({"jobs": [HELLO | {"after": [{"job": "zzzz"}]}]}) == (404, "NoSuchJob")
    assert await ledger.jobs.page(JobFilter()) == ()


async def test_a_dry_run_keeps_nothing(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    fits = (await http.post("/v1/jobs/dry-run", headers=alice, json={"job": HELLO})).json()
    assert fits["could_run"] is True
    assert fits["placement"]["pool"] == "lab-a100"
    assert [o["pool"] for o in fits["options"]] == ["lab-a100"]
    assert fits["preview"]
    large = HELLO | {"gpus": {"count": 64}}
    never = (await http.post("/v1/jobs/dry-run", headers=alice, json={"job": large})).json()
    assert (never["could_run"], never["placement"], never["options"]) == (False, None, [])
    assert never["why"]
    assert never["hint"]
    assert await ledger.jobs.page(JobFilter()) == ()


async def test_members_may_send_a_batch_and_no_more(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    big = HELLO | {"script": "#" * (200 * 1024), "command": []}
    assert len(await submit(http, alice, big, big)) == 2
    viewer = await bearer(ledger, Role.VIEWER)
    answer = await http.post("/v1/jobs", headers=viewer, json={"jobs": [big]})
    assert answer.status_code == 403
    huge = await http.post("/v1/jobs", headers=alice, content=b" " * (33 * 1024 * 1024))
    assert huge.status_code == 413


async def test_open_jobs_are_bounded_by_user_and_team(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    held = HELLO | {"array": list(range(25))}
    (made,) = await submit(http, alice, held, key="first", hold=True)

    async def refused(who: dict[str, str], **more: Any) -> dict[str, Any]:
        body = {"jobs": [held], "hold": True} | more
        answer = await http.post("/v1/jobs", headers=who, json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "TooManyOpenJobs"), answer.text
        problem: dict[str, Any] = answer.json()
        return problem

    problem = await refused(alice)
    assert problem["detail"] == "user alice has 25 open jobs and is limited to 30; this would add 25 more"
    assert "max_open_jobs_user" in problem["hint"]
    await refused(alice, key="second")
    again = await submit(http, alice, held, key="first", hold=True)  # stored already: the answer was lost
    assert again[0]["ids"] == made["ids"]
    await submit(http, alice, *[HELLO] * 5)
    bob = await bearer(ledger, Role.MEMBER, "bob")
    await submit(http, bob, *[HELLO] * 20)
    assert (await refused(bob, jobs=[HELLO]))["detail"].startswith("team nlp has 50 open jobs")
    carol = await bearer(ledger, Role.MEMBER, "carol")
    await submit(http, carol, held)
    # Others are counted by the ledger, and what has ended counts no more.
    await http.post("/v1/jobs/cancel", headers=alice, json={"jobs": [made["id"]]})
    assert await ledger.jobs.count_open_of_user(UserName("alice"), 100) == 5
    assert await ledger.jobs.count_open_of_team(TeamName("nlp"), 100) == 25
    assert await ledger.jobs.count_open_of_team(TeamName("nlp"), 7) == 7


async def test_the_texts_of_a_job_are_bounded(http: httpx2.AsyncClient, alice: dict[str, str]) -> None:
    for more in (
        {"env": {f"A{n}": "x" * 100_000 for n in range(11)}},
        {"command": ["x" * 100_000] * 11},
        {"env": {"A": "x" * 100_000}, "setup": "x" * 100_000, "command": ["x" * 100_000] * 9},
    ):
        answer = await http.post("/v1/jobs", headers=alice, json={"jobs": [HELLO | more]})
        assert answer.status_code == 422, answer.text
        assert "longer than 1048576 characters together" in answer.json()["detail"]
    await submit(http, alice, HELLO | {"env": {f"A{n}": "x" * 100_000 for n in range(10)}}, hold=True)


async def test_who_held_a_job_or_a_higher_role_releases_it(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    lead = await bearer(ledger, Role.LEAD, "bob")
    oper, admin = await bearer(ledger, Role.OPERATOR, "oper"), await bearer(ledger, Role.ADMIN, "boss")
    (made,) = await submit(http, alice, HELLO)
    job = {"jobs": [made["id"]]}

    async def change(verb: str, who: dict[str, str]) -> int:
        answer = await http.post(f"/v1/jobs/{verb}", headers=who, json=job)
        if answer.status_code == 403:
            assert answer.json()["code"] == "HeldByRole"
        return answer.status_code

    assert (await change("hold", alice), await change("release", alice)) == (200, 200)
    assert (await change("hold", lead), await change("release", alice)) == (200, 403)
    assert await change("release", lead) == 200
    assert (await change("hold", oper), await change("release", lead)) == (200, 403)
    assert await change("release", oper) == 200
    assert (await change("hold", admin), await change("release", alice)) == (200, 403)
    assert await change("release", oper) == 200
    # Held by its owner first: an operator's hold on top counts.
    assert (await change("hold", alice), await change("hold", oper), await change("hold", alice)) == (
        200,
        200,
        200,
    )
    assert await change("release", alice) == 403
    seen = (await http.get(f"/v1/jobs/{made['id']}", headers=alice)).json()
    assert (seen["state"], seen["events"][-1]["by"], seen["events"][-1]["text"]) == (
        "held",
        "oper",
        "as operator",
    )
    assert await change("cancel", alice) == 200


async def test_keep_is_for_whoever_may_change_the_job_and_bounded(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    lead, carol = await bearer(ledger, Role.LEAD, "bob"), await bearer(ledger, Role.MEMBER, "carol")
    oper = await bearer(ledger, Role.OPERATOR, "oper")
    (made,) = await submit(http, alice, HELLO)

    async def keep(who: dict[str, str], seconds: int = 4 * 3600, job: str = made["id"]) -> httpx2.Response:
        body = {"jobs": [job], "seconds": seconds, "reason": "back soon"}
        return await http.post("/v1/jobs/keep", headers=who, json=body)

    assert [(await keep(who)).status_code for who in (alice, lead, oper, carol)] == [200, 200, 200, 403]
    too_long = await keep(alice, 24 * 3600 + 1)
    assert (too_long.status_code, too_long.json()["code"]) == (422, "KeepTooLong")
    assert "at most 1d" in too_long.json()["detail"]
    assert (await keep(alice, 59)).status_code == 422
    assert (await keep(alice, job="zzzz")).json()["code"] == "NoSuchJob"
    kept = (await keep(alice)).json()
    assert (kept["kept"], kept["over"]) == ([made["id"]], [])
    seen = (await http.get(f"/v1/jobs/{made['id']}", headers=alice)).json()["idle"]
    assert (seen["kept_until"], seen["kept_by"], seen["kept_for"], seen["action"]) == (
        kept["until"],
        "alice",
        "back soon",
        None,
    )
    await http.post("/v1/jobs/cancel", headers=alice, json={"jobs": [made["id"]]})
    assert (await keep(alice)).json()["over"] == [made["id"]]
    assert (await http.get(f"/v1/jobs/{made['id']}", headers=alice)).json()["idle"] is None


async def test_a_job_counts_for_whoever_may_change_it(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str], database_url: str
) -> None:
    lead, carol = await bearer(ledger, Role.LEAD, "bob"), await bearer(ledger, Role.MEMBER, "carol")
    viewer, oper = await bearer(ledger, Role.VIEWER, "ann"), await bearer(ledger, Role.OPERATOR, "oper")
    (made,) = await submit(http, alice, HELLO)

    async def count(who: dict[str, str], body: object, job: str = made["id"]) -> httpx2.Response:
        return await http.post(f"/v1/jobs/{job}/counts", headers=who, json=body)

    steps = {"steps": 100}
    asked = [(await count(who, steps)).status_code for who in (alice, lead, oper, carol, viewer)]
    assert asked == [200, 200, 200, 403, 403]
    more = (await count(alice, {"steps": 250, "tokens": 7})).json()
    assert more == {
        "job": made["id"],
        "counts": {"steps": 250, "tokens": 7},
        "added": {"steps": 150, "tokens": 7},
    }
    assert (await count(alice, {"steps": 180}, made["name"])).json()["added"] == {"steps": 0}
    seen = (await http.get(f"/v1/jobs/{made['id']}", headers=alice)).json()
    assert seen["counts"] == {"steps": 250, "tokens": 7}
    for invalid in (
        {}, {"Steps": 1}, {"steps": -1}, {"steps": 10**15 + 1}, {"steps": 1.5}, {"s" * 32: 1}, [1],
        {"steps": None}, {f"u{n}": 1 for n in range(5)},
    ):  # fmt: skip
        refused = await count(alice, invalid)
        assert (refused.status_code, refused.json()["code"]) == (422, "InvalidRequest"), invalid
    too_many = await count(alice, {"a": 1, "b": 1, "c": 1})
    assert (too_many.status_code, too_many.json()["code"]) == (409, "TooManyUnits")
    assert "tokens" in too_many.json()["hint"]
    assert (await count(alice, steps, "zzzz")).json()["code"] == "NoSuchJob"
    # A job is found by its engine's id, with a slash in the path.
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("INSERT INTO engine_job SELECT 'lab', '1542', id, 1 FROM job")
    by_engine = await count(alice, {"steps": 300}, "lab/1542")
    assert by_engine.json()["added"] == {"steps": 50}, by_engine.text


async def test_what_idle_rules_did_is_listed_newest_first(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str], database_url: str
) -> None:
    (made,) = await submit(http, alice, HELLO)
    with psycopg.connect(database_url, autocommit=True) as db:
        for action in ("warn", "lower", "cancel"):
            db.execute(
                "INSERT INTO idle_action"
                " (job, cluster, rule, action, at, idle_since, dry_run, evidence, outcome)"
                " SELECT id, 'lab', 'notebooks', %s, now(), now(), true, 'it slept', 'dry-run' FROM job",
                (action,),
            )
    first = (await http.get("/v1/idle-steps?limit=2", headers=alice)).json()
    assert [(s["action"], s["outcome"], s["job"], s["user"]) for s in first["items"]] == [
        ("cancel", "dry-run", made["id"], "alice"),
        ("lower", "dry-run", made["id"], "alice"),
    ]
    rest = await http.get(f"/v1/idle-steps?limit=2&cursor={first['next_cursor']}", headers=alice)
    assert [s["action"] for s in rest.json()["items"]] == ["warn"]


async def test_a_waiting_job_is_changed_as_far_as_a_new_one_could_be(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    (made,) = await submit(http, alice, HELLO | {"gpus": {"count": 2}})
    path = f"/v1/jobs/{made['id']}/change"

    async def change(who: dict[str, str], **values: object) -> tuple[int, dict[str, Any]]:
        answer = await http.post(path, headers=who, json=values)
        return answer.status_code, answer.json()

    tried = await change(alice, gpus=4, time_seconds=3600, dry_run=True)
    assert tried[0] == 200
    assert tried[1]["requested"] is False
    assert tried[1]["changes"] == [
        {"name": "GPUs", "before": "2", "after": "4"},
        {"name": "time limit", "before": "none", "after": "1h"},
    ]
    seen = (await http.get(f"/v1/jobs/{made['id']}", headers=alice)).json()
    assert [e["kind"] for e in seen["events"]] == ["submitted"]

    assert (await change(alice, gpus=4))[1]["requested"] is True
    assert (await change(alice, gpus=4))[1]["changes"] == [], "it will be so already"
    assert (await change(alice, gpus=3))[1]["changes"] == [{"name": "GPUs", "before": "4", "after": "3"}]
    seen = (await http.get(f"/v1/jobs/{made['id']}", headers=alice)).json()
    assert [(e["kind"], e["by"], e["text"]) for e in seen["events"][1:]] == [
        ("change-requested", "alice", "GPUs 2 → 4"),
        ("change-requested", "alice", "GPUs 4 → 3"),
    ]

    lead = await bearer(ledger, Role.LEAD, "bob")
    other_lead = await bearer(ledger, Role.LEAD, "carol")
    assert (await change(other_lead, gpus=1))[1]["code"] == "NotYourJob"
    assert (await change(lead, gpus=1, dry_run=True))[0] == 200

    refusals: dict[str, tuple[dict[str, object], int, str]] = {
        "urgent priorities are not the team's": ({"priority": "urgent"}, 403, "PriorityNotAllowed"),
        "nobody knows the pool": ({"pool": "moon"}, 422, "NoSuchPool"),
        "the grant is smaller": ({"gpus": 8, "nodes": 9}, 422, "NoPoolFits"),
        "nothing to change": ({}, 422, "InvalidRequest"),
    }
    for what, (values, status, code) in refusals.items():
        assert (await change(alice, **values))[0] == status, what
        assert (await change(alice, **values))[1]["code"] == code, what
    await http.post("/v1/jobs/cancel", headers=alice, json={"jobs": [made["id"]]})
    assert (await change(alice, gpus=1))[1]["code"] == "JobEnded"


async def test_what_has_a_request_of_its_own_is_not_changed(
    http: httpx2.AsyncClient, alice: dict[str, str]
) -> None:
    (made,) = await submit(http, alice, HELLO | {"array": [1, 2]})
    answer = await http.post(f"/v1/jobs/{made['ids'][1]}/change", headers=alice, json={"gpus": 2})
    assert (answer.status_code, answer.json()["code"]) == (409, "ArrayNotChanged")
