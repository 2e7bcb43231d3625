"""What the answers say of clusters, pools and nodes, fresh, stale and never seen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx2

from fairway.engines.port import Unreachable
from fairway.ledger import ClusterState, Ledger, PoolState
from fairway.model.access import Role
from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName, NodeName, PoolName, SliceName
from fairway.model.observation import Devices, Health, Node, Observation
from fairway.services.convert import fleet as convert
from tests.unit.api.conftest import FLEET, bearer

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def state(*, reachable: bool = True, attempted: bool = True, observed: bool = True) -> ClusterState:
    return ClusterState(
        ClusterName("hpc"),
        EngineKind.SLURM,
        "24.11.5" if observed else "",
        reachable,
        "" if reachable else "Unreachable",
        "" if reachable else "it is off",
        "" if reachable else "turn it on",
        NOW - timedelta(minutes=5),
        NOW if attempted else None,
        NOW - timedelta(seconds=7) if observed else None,
    )


def totals(pool: str | None, total: int, slice_: str | None = None) -> PoolState:
    return PoolState(
        ClusterName("hpc"),
        PoolName(pool) if pool else None,
        SliceName(slice_) if slice_ else None,
        total,
        in_use=1,
        free=total - 3,
        unhealthy=2,
        nodes=4,
        nodes_drained=1,
        nodes_down=0,
    )


def facts(cluster: ClusterState | None, *pools: PoolState) -> convert.FleetState:
    return convert.FleetState(FLEET, {"hpc": cluster} if cluster else {}, pools, NOW)


def test_counts_reconcile_and_unclaimed_gpus_are_part_of_them() -> None:
    rows = (totals("hpc-a100", 32), totals(None, 8), totals("hpc-mig", 14, "1g.10gb"))
    cluster = convert.clusters(facts(state(), *rows))[1]
    assert cluster.gpus is not None and cluster.slices is not None
    assert (cluster.gpus.total, cluster.gpus.in_use, cluster.gpus.free, cluster.gpus.unhealthy) == (
        40,
        2,
        34,
        4,
    )
    assert cluster.gpus.total == cluster.gpus.in_use + cluster.gpus.free + cluster.gpus.unhealthy
    assert cluster.gpus_in_no_pool == 8
    assert [(s.slice, s.total) for s in cluster.slices] == [("1g.10gb", 14)]
    assert cluster.pools == ["hpc-a100", "hpc-mig"]
    assert (cluster.reachable, cluster.reason, cluster.age_seconds) == (True, None, 7)


def test_slices_the_file_names_but_no_node_has_are_zero() -> None:
    pool = next(
        p for p in convert.pools(facts(state(), totals("hpc-mig", 14, "1g.10gb"))) if p.name == "hpc-mig"
    )
    assert pool.slices is not None
    assert [(s.slice, s.total, s.nodes) for s in pool.slices] == [("1g.10gb", 14, 4), ("3g.40gb", 0, 0)]


def test_never_observed_is_unknown_and_not_zero() -> None:
    for cluster in (None, state(reachable=False, attempted=False, observed=False)):
        shown = convert.clusters(facts(cluster))[1]
        assert (shown.reachable, shown.gpus, shown.observed_at, shown.since) == (None, None, None, None)
        assert shown.reason is not None and shown.reason.message == "not observed yet"
        assert all(p.gpus is None and p.reachable is None for p in convert.pools(facts(cluster)))


def test_never_reached_has_a_reason_but_no_counts() -> None:
    shown = convert.clusters(facts(state(reachable=False, observed=False)))[1]
    assert (shown.reachable, shown.gpus, shown.engine_version) == (False, None, None)
    assert shown.reason is not None and shown.reason.message == "it is off"
    assert shown.since == NOW - timedelta(minutes=5)


def test_unreachable_keeps_its_last_known_state() -> None:
    fact = facts(state(reachable=False), totals("hpc-a100", 32))
    cluster = convert.clusters(fact)[1]
    assert (cluster.reachable, cluster.gpus and cluster.gpus.total, cluster.age_seconds) == (False, 32, 7)
    pool = convert.pools(fact)[1]
    assert (pool.name, pool.reachable, pool.gpus and pool.gpus.total) == ("hpc-a100", False, 32)


def test_the_ledgers_clock_may_run_ahead() -> None:
    ahead = convert.FleetState(FLEET, {"hpc": state()}, (), NOW - timedelta(minutes=1))
    assert convert.clusters(ahead)[1].age_seconds == 0


async def test_through_the_ledger_and_over_http(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = await bearer(ledger, Role.VIEWER)
    await ledger.revisions.follow(1, {c.name: c.engine for c in FLEET.clusters})
    lease = await ledger.leases.take("observe", "hpc", "test", 60)
    assert lease is not None
    pool = PoolName("hpc-a100")
    nodes = (
        Node(NodeName("n1"), Health.READY, "", (Devices(pool, "gpu:a100", None, 8, 3, 1),)),
        Node(NodeName("n2"), Health.DOWN, "Not responding", (Devices(pool, "gpu:a100", None, 8, 0),)),
    )
    async with ledger.writing(lease) as writing:
        await writing.observations.write(Observation(ClusterName("hpc"), "24.11.5", nodes))
    async with ledger.writing(lease) as writing:
        await writing.observations.write_failure("hpc", Unreachable("Unreachable", "it is off", "turn it on"))

    clusters = (await http.get("/v1/clusters", headers=headers)).json()["items"]
    assert [c["name"] for c in clusters] == ["dream", "hpc"]
    assert clusters[0]["reason"]["code"] == "NotObserved"
    hpc = clusters[1]
    assert hpc["reachable"] is False
    assert hpc["reason"] == {"code": "Unreachable", "message": "it is off", "hint": "turn it on"}
    assert hpc["gpus"] == {"total": 16, "in_use": 3, "free": 4, "unhealthy": 9}
    assert hpc["observed_at"].endswith("Z") and hpc["since"].endswith("Z")
    assert hpc["age_seconds"] in range(60)

    pools = (await http.get("/v1/pools?cluster=hpc", headers=headers)).json()["items"]
    assert [p["name"] for p in pools] == ["hpc-a100", "hpc-mig"]
    assert pools[0]["gpus"] == hpc["gpus"] | {"nodes": 2, "nodes_drained": 0, "nodes_down": 1, "waiting": 0}
    assert pools[0]["price_per_gpu_hour"] == "1.90"

    down = (await http.get("/v1/nodes?health=down&pool=hpc-a100&cluster=hpc", headers=headers)).json()
    assert [n["name"] for n in down["items"]] == ["n2"]
    assert down["items"][0]["devices"] == [
        {
            "total": 8,
            "in_use": 0,
            "free": 0,
            "unhealthy": 8,
            "pool": "hpc-a100",
            "kind": "gpu:a100",
            "slice": None,
        }
    ]
    assert down["next_cursor"] is None


async def test_a_token_over_its_life(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = await bearer(ledger, Role.ADMIN, "root")
    new = {"name": "grafana", "role": "viewer", "expires_in_seconds": 3600}
    made = await http.post("/v1/tokens", json=new, headers=headers)
    assert made.status_code == 201
    secret = made.json()["secret"]
    me = await http.get("/v1/whoami", headers={"Authorization": f"Bearer {secret}"})
    assert (me.json()["name"], me.json()["role"], me.json()["fleet"]) == ("grafana", "viewer", "acme")
    listed = await http.get("/v1/tokens", headers=headers)
    assert [t["name"] for t in listed.json()["items"]] == ["grafana", "root"]
    assert "secret" not in listed.text and secret not in listed.text
    assert listed.json()["items"][0]["created_by"] == "root"
    assert listed.json()["items"][0]["last_used_at"] is not None
    gone = await http.delete("/v1/tokens/grafana", headers=headers)
    assert gone.json()["revoked_at"] is not None
    assert (await http.get("/v1/whoami", headers={"Authorization": f"Bearer {secret}"})).status_code == 401


async def test_metrics(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    headers = await bearer(ledger, Role.ADMIN)
    await http.delete("/v1/tokens/some-name", headers=headers)
    await http.get("/no/such/path")
    shown = (await http.get("/metrics", headers=headers)).text
    assert (
        'fairway_api_request_seconds_count{method="DELETE",route="/v1/tokens/{name}",status="404"} 1.0'
        in shown
    )
    assert 'route="none",status="404"' in shown
    assert "some-name" not in shown and "/no/such/path" not in shown


async def test_no_token_is_made_for_a_user_of_the_system(http: httpx2.AsyncClient, ledger: Ledger) -> None:
    admin = await bearer(ledger, Role.ADMIN)
    for name, user in (("ci", "root"), ("ci", "slurm"), ("ci", "fairway"), ("munge", None)):
        answer = await http.post(
            "/v1/tokens", headers=admin, json={"name": name, "role": "member", "user": user}
        )
        assert (answer.status_code, answer.json()["code"]) == (403, "SystemUser")
    assert {t.name for t in await ledger.tokens.all()}.isdisjoint({"ci", "munge"})
