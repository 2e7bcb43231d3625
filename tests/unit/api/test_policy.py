"""Plans, applies and what is kept of them, over HTTP."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES
from fairway.engines.port import Unreachable
from fairway.files import parse_fleet
from fairway.ledger import Ledger
from fairway.ledger.records.policy import StoredChange
from fairway.model.access import Role
from fairway.model.apply import ApplyState, DriftKind, Lifted
from fairway.model.fleet import EngineKind, Fleet
from fairway.model.names import ClusterName, TeamName
from fairway.policy.drift import DriftEntry
from fairway.policy.objects import Action, Change, FieldChange, FoundObject, Intervention, ObjectKey
from fairway.services.fleets import Fleets
from fairway.wire.policy import MAX_FLEET_BYTES
from tests.unit.api.conftest import bearer, build_policy_services
from tests.unit.api.governed import Memory
from tests.unit.api.test_problems import check

FLEET = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  hpc:
    engine: slurm
    url: https://hpc.example:6820
    credentials: { jwt_key_file: hpc.jwt }
  dream: { engine: virtual }
pools:
  hpc-a100:
    { cluster: hpc, gpu: A100-80GB, capacity: owned, price: 1.9, slurm: { partition: gpu } }
  dream-a100:
    { cluster: dream, gpu: A100-80GB, capacity: owned, price: 1.9, virtual: { nodes: 4 } }
teams:
  research:
    share: 60
    guarantee: { hpc-a100: 16, dream-a100: 8 }
    teams:
      nlp: { members: [alice] }
  product: { share: 40, guarantee: { dream-a100: 8 }, borrow: { dream-a100: 0 }, members: [bob] }
"""
RAISED = FLEET.replace("share: 60", "share: 70")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
async def http(ledger: Ledger, memory: Memory) -> AsyncIterator[httpx2.AsyncClient]:
    """Speaks to an app whose fleet is FLEET, as the server read it from its own folder."""
    await ledger.revisions.add(FLEET, digest(FLEET), "test")
    app = create_app(
        ledger,
        CollectorRegistry(),
        Fleets(ledger, lambda revision: parse_fleet(revision.text, "fleet", Path("/srv"))),
        build_policy_services(memory),
        NO_JOB_SERVICES,
    )
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://fairway.test") as client:
        yield client


@pytest.fixture
async def operator(ledger: Ledger) -> dict[str, str]:
    return await bearer(ledger, Role.OPERATOR, "dana")


async def plan(http: httpx2.AsyncClient, headers: dict[str, str], text: str, **more: Any) -> dict[str, Any]:
    answer = await http.post("/v1/plans", json={"fleet": text} | more, headers=headers)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def apply(ledger: Ledger, text: str, state: ApplyState = ApplyState.DONE, by: str = "dana") -> int:
    """An apply of `text` to hpc that ended so."""
    number = await ledger.applies.queue(text, digest(text), {ClusterName("hpc"): "f"}, force=False, by=by)
    lease = await ledger.leases.take("apply", "hpc", "test", 30)
    assert lease
    share = FieldChange("share", 60, 70)
    change = Change(Action.UPDATE, ObjectKey("account", "research"), (share,), team=TeamName("research"))
    async with ledger.writing(lease) as tx:
        await tx.applies.start(number, [StoredChange(change, made=False)])
        done = state is ApplyState.DONE
        error = None if done else Unreachable("Unreachable", "hpc is off", "turn it on")
        await tx.applies.finish(number, state, [StoredChange(change, made=done)], error=error, applied=done)
    await ledger.leases.release(lease)
    return number


async def test_a_plan_says_all(
    http: httpx2.AsyncClient, operator: dict[str, str], memory: Memory, ledger: Ledger
) -> None:
    memory.objects["hpc"] = [
        FoundObject(ObjectKey("account", "research"), {"share": 60}, ours=True),
        FoundObject(ObjectKey("account", "product"), {"share": 1}, ours=False),
    ]
    await apply(ledger, FLEET)
    made = await plan(http, operator, RAISED)
    assert made["fleet"] == "acme" and made["digest"] == digest(RAISED)
    assert made["diff"] == [{"team": "research", "sign": "~", "what": "share", "before": "60", "after": "70"}]
    hpc, dream = made["clusters"]
    assert (hpc["cluster"], hpc["engine"], hpc["engine_version"]) == ("hpc", "slurm", "memory 1.0")
    changes = {c["name"]: c for c in hpc["changes"]}
    assert {(name, c["action"], c["team"]) for name, c in changes.items()} == {
        ("research", "update", "research"),
        ("nlp", "create", "nlp"),
    }
    assert changes["research"]["fields"] == [{"field": "share", "before": 60, "after": 70}]
    assert hpc["in_the_way"] == [{"kind": "account", "name": "product"}]
    assert [o["code"] for o in hpc["objections"]] == ["InTheWay"]
    assert hpc["notices"][0]["promise"] == "memory"
    assert len(hpc["fingerprint"]) == 64 and hpc["fingerprint"] != dream["fingerprint"]
    assert len(dream["changes"]) == 3 and not dream["objections"]


async def test_of_one_cluster(http: httpx2.AsyncClient, operator: dict[str, str], memory: Memory) -> None:
    made = await plan(http, operator, FLEET, cluster="dream")
    assert [c["cluster"] for c in made["clusters"]] == ["dream"]
    assert {c.name for c in memory.built} == {"dream"}
    missing = await http.post("/v1/plans", json={"fleet": FLEET, "cluster": "x"}, headers=operator)
    assert "hpc, dream" in str(check(missing, 404, "NoSuchCluster")["hint"])


async def test_a_cluster_that_does_not_answer(
    http: httpx2.AsyncClient, operator: dict[str, str], memory: Memory
) -> None:
    memory.lost = {"hpc"}
    made = await plan(http, operator, FLEET)
    assert [c["cluster"] for c in made["clusters"]] == ["dream"]
    assert made["failures"] == [
        {"cluster": "hpc", "code": "Unreachable", "message": "hpc is off", "hint": "turn it on"}
    ]


async def test_every_fault_of_a_bad_fleet(http: httpx2.AsyncClient, operator: dict[str, str]) -> None:
    bad = FLEET.replace("share: 60", "share: sixty").replace("capacity: owned", "capacity: own")
    fingerprints = {"fingerprints": {"hpc": "f"}}
    for path, more in (("/v1/plans", {}), ("/v1/applies", fingerprints), ("/v1/renders", {"cluster": "hpc"})):
        answer = await http.post(path, json={"fleet": bad, "source": "my.yaml"} | more, headers=operator)
        problem = check(answer, 422, "InvalidFile")
        faults: list[dict[str, Any]] = problem["faults"]  # type: ignore[assignment]
        assert [f["where"] for f in faults] == [
            "pools.hpc-a100.capacity",
            "pools.dream-a100.capacity",
            "teams.research.share",
        ]
        spot = faults[2]["file"]
        assert (spot["source"], spot["line"], spot["found"]) == ("my.yaml", 18, "sixty")
        assert spot["severity"] == "error" and spot["hint"] and spot["code"]


async def test_warnings_come_with_the_plan(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    admin = await bearer(ledger, Role.ADMIN)
    made = await plan(http, admin, FLEET.replace("https://hpc", "http://hpc"))
    assert [w["file"]["code"] for w in made["warnings"]] == ["PlainHttp"]


MOVED = [
    FLEET.replace("https://hpc.example", "https://evil.example"),
    FLEET.replace("hpc.jwt", "../etc/shadow"),
    FLEET.replace("{ jwt_key_file: hpc.jwt }", "{ token_file: /etc/shadow }"),
    FLEET.replace("credentials: {", "credentials: { user: root,"),
    FLEET.replace("    credentials: {", "    logs: /etc\n    credentials: {"),
    FLEET.replace("    credentials: {", "    logs_seen_at: /root\n    credentials: {"),
    FLEET.replace("    credentials: {", "    checkpoints: /var\n    credentials: {"),
    FLEET.replace("  hpc:\n", "  hpc2:\n", 1).replace("cluster: hpc,", "cluster: hpc2,"),
    FLEET.replace("dream: { engine: virtual }", "dream: { engine: virtual }\n  more: { engine: kubernetes }"),
    FLEET.replace("dream: { engine: virtual }", "dream: { engine: virtual }\n  more: { engine: virtual }"),
    FLEET + "notify: { webhook: { url: https://elsewhere.example.org, token_file: /srv/hpc.jwt } }\n",
    FLEET.replace("members:", "notify: { slack: { url_file: /srv/a } }, members:", 1),
]


@pytest.mark.parametrize("text", MOVED)
async def test_only_an_admin_says_where_a_cluster_is(
    http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger, memory: Memory, text: str
) -> None:
    assert text != FLEET
    asking: dict[str, dict[str, object]] = {
        "/v1/plans": {},
        "/v1/applies": {"fingerprints": {"dream": "f"}},
        "/v1/renders": {"cluster": "hpc"},
    }
    for path, more in asking.items():
        answer = await http.post(path, json={"fleet": text} | more, headers=operator)
        problem = check(answer, 403, "RoleTooLow")
        assert re.search("than the server's fleet says|change their channels", str(problem["detail"]))
    assert memory.built == []  # nobody was contacted, no credential was read
    assert await ledger.applies.page() == ()
    assert (await ledger.revisions.newest()).text == FLEET  # type: ignore[union-attr]
    admin = await bearer(ledger, Role.ADMIN)
    await plan(http, admin, text)


async def test_what_does_not_say_where_clusters_are_is_an_operators(
    http: httpx2.AsyncClient, operator: dict[str, str]
) -> None:
    for text in (
        FLEET,
        RAISED,
        FLEET.replace("hpc.jwt", "/srv/hpc.jwt"),  # the same file
        FLEET.replace("  dream: { engine: virtual }\n", "")
        .replace(
            "  dream-a100:\n    { cluster: dream, gpu: A100-80GB, capacity: owned, price: 1.9, "
            "virtual: { nodes: 4 } }\n",
            "",
        )
        .replace(", dream-a100: 8", "")
        .replace("dream-a100", "hpc-a100"),
    ):
        await plan(http, operator, text)


async def test_a_server_without_a_fleet_takes_the_first_from_an_admin(ledger: Ledger, memory: Memory) -> None:
    def no_fleet(_: object) -> Fleet:
        raise AssertionError("there is none")

    app = create_app(
        ledger, CollectorRegistry(), Fleets(ledger, no_fleet), build_policy_services(memory), NO_JOB_SERVICES
    )
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    operator, admin = await bearer(ledger, Role.OPERATOR), await bearer(ledger, Role.ADMIN)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as http:
        answer = await http.post("/v1/plans", json={"fleet": FLEET}, headers=operator)
        check(answer, 403, "RoleTooLow")
        assert len((await plan(http, admin, FLEET))["clusters"]) == 2


async def test_an_apply_is_queued_with_what_was_read(
    http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger
) -> None:
    fingerprints = {"hpc": "a" * 64, "dream": "b" * 64}
    asked = {"fleet": RAISED, "source": "f.yaml", "fingerprints": fingerprints, "force": True}
    answer = await http.post("/v1/applies", json=asked, headers=operator)
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert (told["state"], told["created_by"], told["force"]) == ("waiting", "dana", True)
    assert told["digest"] == digest(RAISED)
    assert [c["cluster"] for c in told["clusters"]] == ["dream", "hpc"]
    work = await ledger.applies.next_work("hpc")
    assert work and work.fingerprint == "a" * 64 and work.revision and work.revision.text == RAISED
    newest = await ledger.revisions.newest()
    assert newest and newest.id == told["revision"]


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"fleet": FLEET}, 422, "InvalidRequest"),
        ({"fleet": FLEET, "fingerprints": {}}, 422, "InvalidRequest"),
        ({"fleet": FLEET, "fingerprints": {"nowhere": "f"}}, 404, "NoSuchCluster"),
        ({"fleet": FLEET, "fingerprints": {"hpc": "f"}, "forced": True}, 422, "InvalidRequest"),
        ({"fleet": "", "fingerprints": {"hpc": "f"}}, 422, "InvalidRequest"),
        ({"fleet": "\0", "fingerprints": {"hpc": "f"}}, 422, "InvalidFile"),
        ({"fleet": FLEET, "fingerprints": {"hpc": "f"}, "source": "a\nb"}, 422, "InvalidRequest"),
    ],
)
async def test_applies_that_are_not_queued(
    http: httpx2.AsyncClient,
    operator: dict[str, str],
    ledger: Ledger,
    asked: dict[str, Any],
    status: int,
    code: str,
) -> None:
    check(await http.post("/v1/applies", json=asked, headers=operator), status, code)
    assert await ledger.applies.page() == ()


WITHOUT_DREAM = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  hpc:
    engine: slurm
    url: https://hpc.example:6820
    credentials: { jwt_key_file: hpc.jwt }
pools:
  hpc-a100:
    { cluster: hpc, gpu: A100-80GB, capacity: owned, price: 1.9, slurm: { partition: gpu } }
teams:
  research: { share: 60, guarantee: { hpc-a100: 16 }, teams: { nlp: {} } }
"""


@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_plan_announces_what_it_removes(
    http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger, is_applied: bool
) -> None:
    if is_applied:
        await apply(ledger, FLEET)
    made = await plan(http, operator, WITHOUT_DREAM)
    dream = made["removals"][0]
    assert (dream["kind"], dream["name"], dream["needs_force"]) == ("cluster", "dream", True)
    assert dream["detail"] == "pool dream-a100; guarantees of 16 to 2 teams"
    others = [(r["kind"], r["name"], r["what"], r["needs_force"]) for r in made["removals"][1:]]
    # No member has ever had a job: their teams go without force.
    expected = [("team", "product", "", False), ("member", "nlp", "alice", False)]
    assert others == (expected if is_applied else expected[:1])


async def test_what_is_removed_needs_force_or_its_name(
    http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger
) -> None:
    await apply(ledger, FLEET)
    asked = {"fleet": WITHOUT_DREAM, "fingerprints": {"hpc": "f"}}
    answer = await http.post("/v1/applies", json=asked, headers=operator)
    check(answer, 409, "RemovalsNotConfirmed")
    assert "cluster dream" in answer.text and "--remove dream" in answer.text
    newest = await ledger.revisions.newest()
    assert newest is not None and newest.text == FLEET  # dream is still tracked
    other = await http.post("/v1/applies", json=asked | {"confirmed": ["hpc"]}, headers=operator)
    check(other, 409, "RemovalsNotConfirmed")
    for more in ({"confirmed": ["dream"]}, {"force": True}):
        assert (await http.post("/v1/applies", json=asked | more, headers=operator)).status_code == 202
        await ledger.revisions.add(FLEET, digest(FLEET), "test")


async def test_a_partial_fleet_file_removes_nothing(
    http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger
) -> None:
    await apply(ledger, FLEET)
    partial = WITHOUT_DREAM + "partial: true\n"
    made = await plan(http, operator, partial)
    assert {r["name"] for r in made["removals"] if r["refused"]} == {"dream", "product"}
    asked = {"fleet": partial, "fingerprints": {"hpc": "f"}, "force": True}
    check(await http.post("/v1/applies", json=asked, headers=operator), 409, "PartialFleetFile")


async def test_revisions_of_the_fleet_file(
    http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger
) -> None:
    await apply(ledger, FLEET)
    await ledger.revisions.add(RAISED, digest(RAISED), "ann")  # not applied
    applied = (await http.get("/v1/fleet", headers=operator)).json()
    assert (applied["revision"], applied["text"], applied["applied_to"]) == (1, FLEET, ["hpc"])
    newest = (await http.get("/v1/revisions/2", headers=operator)).json()
    assert (newest["text"], newest["created_by"], newest["applied_to"]) == (RAISED, "ann", [])
    check(await http.get("/v1/revisions/9", headers=operator), 404, "NoSuchRevision")
    viewer = await bearer(ledger, Role.VIEWER, "eve")
    page = (await http.get("/v1/revisions?limit=1", headers=viewer)).json()
    assert [r["revision"] for r in page["items"]] == [2] and "text" not in page["items"][0]
    rest = await http.get("/v1/revisions", params={"cursor": page["next_cursor"]}, headers=viewer)
    assert [r["revision"] for r in rest.json()["items"]] == [1]
    check(await http.get("/v1/fleet", headers=viewer), 403, "RoleTooLow")


async def test_an_old_text_that_is_applied_again_is_a_rollback(
    http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger
) -> None:
    numbers = [await apply(ledger, text) for text in (FLEET, RAISED, RAISED, FLEET)]
    found = [(await http.get(f"/v1/applies/{n}", headers=operator)).json() for n in numbers]
    assert [a["rollback_to"] for a in found] == [None, None, None, 1]
    assert [a["revision"] for a in found] == [1, 2, 2, 3]


async def test_a_stopped_apply_says_what_is_live(
    http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger, memory: Memory
) -> None:
    memory.objects["hpc"] = []
    await ledger.revisions.follow(
        1, {ClusterName("hpc"): EngineKind.SLURM, ClusterName("dream"): EngineKind.VIRTUAL}
    )
    number = await apply(ledger, FLEET, ApplyState.FAILED)
    (found,) = (await http.get("/v1/stopped-applies", headers=operator)).json()["items"]
    assert (found["apply"], found["cluster"], found["done"], found["total"]) == (number, "hpc", 0, 1)
    assert (found["live"], found["partly_live"], found["not_live"]) == ([], [], ["research"])
    teams = (await http.get("/v1/teams", headers=operator)).json()["items"]
    assert {t["name"]: t["not_live_on"] for t in teams} == {"research": ["hpc"], "nlp": [], "product": []}
    assert [s["apply"] for s in (await plan(http, operator, FLEET))["stopped"]] == [number]
    assert (await plan(http, operator, FLEET, cluster="dream"))["stopped"] == []
    await apply(ledger, FLEET)  # a later one has finished it
    assert (await http.get("/v1/stopped-applies", headers=operator)).json()["items"] == []


async def test_history(http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger) -> None:
    first = await apply(ledger, FLEET)
    broken = await apply(ledger, FLEET.replace("share: 60", "share: 99"), ApplyState.FAILED, by="eve")
    last = await apply(ledger, RAISED)
    viewer = await bearer(ledger, Role.VIEWER)

    page = (await http.get("/v1/applies?limit=2", headers=viewer)).json()
    assert [a["id"] for a in page["items"]] == [last, broken]
    assert "changes" not in page["items"][0]["clusters"][0]
    cursor = {"cursor": page["next_cursor"]}
    rest = (await http.get("/v1/applies?limit=2", params=cursor, headers=viewer)).json()
    assert [a["id"] for a in rest["items"]] == [first] and rest["next_cursor"] is None
    none = (await http.get("/v1/applies?cluster=dream", headers=viewer)).json()
    assert none["items"] == []

    detail = (await http.get(f"/v1/applies/{last}", headers=viewer)).json()
    assert [(s["team"], s["before"], s["after"]) for s in detail["diff"]] == [("research", "60", "70")]
    (change,) = detail["clusters"][0]["changes"]
    assert (change["action"], change["name"], change["made"]) == ("update", "research", True)
    assert change["fields"] == [{"field": "share", "before": 60, "after": 70}]
    failed = (await http.get(f"/v1/applies/{broken}/progress", headers=viewer)).json()
    assert failed["state"] == "failed" and failed["clusters"][0]["code"] == "Unreachable"
    assert failed["created_by"] == "eve"
    for path in ("/v1/applies/999", "/v1/applies/999/progress"):
        check(await http.get(path, headers=viewer), 404, "NoSuchApply")
    for path in ("/v1/applies/0", "/v1/applies/x", f"/v1/applies/{2**63}", f"/v1/applies/{2**70}/progress"):
        check(await http.get(path, headers=viewer), 422, "InvalidRequest")


async def test_adoption(http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger) -> None:
    asked = {"cluster": "hpc", "objects": [{"kind": "qos", "name": "a"}, {"kind": "user", "name": "x/y"}]}
    told = (await http.post("/v1/adoptions", json=asked, headers=operator)).json()
    assert (told["kind"], told["state"], told["revision"]) == ("adopt", "waiting", None)
    work = await ledger.applies.next_work("hpc")
    assert work and work.objects == (ObjectKey("qos", "a"), ObjectKey("user", "x/y"))
    nowhere = await http.post("/v1/adoptions", json=asked | {"cluster": "x"}, headers=operator)
    check(nowhere, 404, "NoSuchCluster")
    for objects in ([], [{"kind": "", "name": "a"}], [{"kind": "qos"}], [{"kind": "q", "name": "a"}] * 1001):
        bad = await http.post("/v1/adoptions", json={"cluster": "hpc", "objects": objects}, headers=operator)
        check(bad, 422, "InvalidRequest")


async def test_a_released_cluster_has_a_policy_to_enforce_again(
    http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger
) -> None:
    await apply(ledger, FLEET)
    before = await plan(http, operator, FLEET)
    assert before["diff"] == []
    lease = await ledger.leases.take("apply", "hpc", "test", 30)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.applies.lift(Lifted.RELEASED, "eve")
    (diff,) = (await plan(http, operator, FLEET))["diff"]
    assert (diff["what"], diff["before"], diff["after"]) == ("policy on hpc", "released by eve", "enforced")


async def test_drift_and_interventions(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    viewer = await bearer(ledger, Role.VIEWER)
    number = await apply(ledger, FLEET)
    lease = await ledger.leases.take("drift", "hpc", "test", 30)
    assert lease
    entries = [
        DriftEntry(ObjectKey("account", f"a{i:03}"), DriftKind.CHANGED, "share", 1, 2, "eve")
        for i in range(5)
    ]
    entries.append(DriftEntry(ObjectKey("qos", "q"), DriftKind.MISSING))
    async with ledger.writing(lease) as tx:
        assert await tx.drift.write(number, entries)
        await tx.drift.write_interventions(
            [Intervention("priority", f"scontrol requeue {i}", str(i), "why") for i in range(5)]
        )
    for path, key in (("/v1/drift", "name"), ("/v1/interventions", "job")):
        found: list[Any] = []
        cursor: dict[str, str] = {}
        while True:
            page = (await http.get(path, params={"limit": "2"} | cursor, headers=viewer)).json()
            found += [item[key] for item in page["items"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        wanted = [f"a{i:03}" for i in range(5)] + ["q"] if key == "name" else ["4", "3", "2", "1", "0"]
        assert found == wanted
        assert (await http.get(f"{path}?cluster=dream", headers=viewer)).json()["items"] == []
    first = (await http.get("/v1/drift?limit=1", headers=viewer)).json()["items"][0]
    assert {
        k: first[k] for k in ("cluster", "kind", "difference", "field", "wanted", "found", "changed_by")
    } == {
        "cluster": "hpc",
        "kind": "account",
        "difference": "changed",
        "field": "share",
        "wanted": 1,
        "found": 2,
        "changed_by": "eve",
    }


@pytest.mark.parametrize(
    "cursor", ["", "x", "W10", "WyItMSJd", "WyLCsiJd", "WyI5OTk5OTk5OTk5OTk5OTk5OTk5OTkiXQ"]
)
async def test_bad_cursors(http: httpx2.AsyncClient, ledger: Ledger, cursor: str) -> None:
    viewer = await bearer(ledger, Role.VIEWER)
    for path in ("/v1/applies", "/v1/interventions", "/v1/drift"):
        check(await http.get(path, params={"cursor": cursor}, headers=viewer), 422, "InvalidCursor")


async def test_teams_are_those_that_were_applied(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    viewer = await bearer(ledger, Role.VIEWER)
    assert (await http.get("/v1/teams", headers=viewer)).json()["items"] == []
    await apply(ledger, FLEET)
    await ledger.revisions.add(RAISED, digest(RAISED), "test")  # not applied
    product, research, nlp = (await http.get("/v1/teams", headers=viewer)).json()["items"]
    assert (product["name"], product["share"], product["members"]) == ("product", 40, ["bob"])
    (grant,) = product["grants"]
    assert (grant["supply"], grant["cluster"]) == ("dream-a100", "dream")
    assert (grant["guarantee"], grant["borrow"], grant["held"], grant["waiting"]) == (8, 0, 0, 0)
    assert (research["name"], research["share"], research["path"]) == ("research", 60, ["research"])
    assert (nlp["parent"], nlp["path"]) == ("research", ["research", "nlp"])
    assert {g["borrow"] for g in nlp["grants"]} == {None}
    one = (await http.get("/v1/teams?limit=1", headers=viewer)).json()
    two = (await http.get("/v1/teams", params={"cursor": one["next_cursor"]}, headers=viewer)).json()
    assert [t["name"] for t in two["items"]] == ["research", "nlp"]


async def test_render(http: httpx2.AsyncClient, operator: dict[str, str]) -> None:
    asked = {"fleet": FLEET, "cluster": "hpc"}
    told = (await http.post("/v1/renders", json=asked, headers=operator)).json()
    assert told == {"cluster": "hpc", "files": {"job_submit.lua": "-- acme hpc\n"}}
    other = await http.post("/v1/renders", json=asked | {"cluster": "dream"}, headers=operator)
    check(other, 422, "NotSlurm")


async def test_import(http: httpx2.AsyncClient, operator: dict[str, str]) -> None:
    told = (await http.post("/v1/imports", json={"cluster": "hpc"}, headers=operator)).json()
    assert told == {"cluster": "hpc", "fleet": "name: imported\n", "remarks": 0}
    check(await http.post("/v1/imports", json={"cluster": "x"}, headers=operator), 404, "NoSuchCluster")


def many_teams(count: int) -> str:
    start = FLEET[: FLEET.index("teams:")]
    return (
        start
        + "teams:\n"
        + "".join(
            f"  team-{i:04}:\n    share: {i + 1}\n    borrow: {{ dream-a100: unlimited }}\n"
            f"    members: [user-{i:04}, another-user-of-team-{i:04}]\n    draining: false\n"
            for i in range(count)
        )
    )


async def test_a_fleet_of_a_thousand_teams_fits(http: httpx2.AsyncClient, operator: dict[str, str]) -> None:
    text = many_teams(1000)
    assert len(text) > 64 * 1024
    made = await plan(http, operator, text)
    assert [len(c["changes"]) for c in made["clusters"]] == [1000, 1000]


async def test_large_bodies_are_bounded_and_only_for_those_who_may(
    http: httpx2.AsyncClient, operator: dict[str, str], ledger: Ledger
) -> None:
    read = 0

    async def chunks(megabytes: int) -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(megabytes):
            read += 1
            yield b" " * (1024 * 1024)

    viewer = await bearer(ledger, Role.VIEWER)
    for headers, status in (({}, 401), (viewer, 403)):
        assert (await http.post("/v1/plans", content=chunks(3), headers=headers)).status_code == status
    json = operator | {"Content-Type": "application/json"}
    for body in (b" " * (MAX_FLEET_BYTES + 1), chunks(6)):
        check(await http.post("/v1/plans", content=body, headers=json), 413, "BodyTooLarge")
    small = {"cluster": "hpc"}
    answer = await http.post("/v1/imports", content=chunks(1), headers=json)
    check(answer, 413, "BodyTooLarge")
    assert (await http.post("/v1/imports", json=small, headers=operator)).status_code == 200
