"""How the tables look, letter by letter, at 100 columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from fairway.cli.output.fleet import clusters_view, loops_view, nodes_view, pools_view, tokens_view
from fairway.cli.output.format import TableView, cell_width, table
from fairway.model.access import Role
from fairway.model.fleet import Capacity, EngineKind
from fairway.model.observation import Health
from fairway.wire import fleet as wire
from fairway.wire.gpu_use import SupplyUse

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LONG = "a-cluster-with-a-name-of-forty-letters-x"
LONG_POOL = "a-pool-that-also-has-forty-letters-name"
UNREACHABLE = wire.Reason(
    code="Unreachable", message="http://127.0.0.1:1 refused the connection", hint="is slurmrestd running?"
)


def lines(view: TableView, width: int = 100) -> str:
    return "\n".join(table(view.columns, view.rows, width))


def fresh(age_seconds: int = 3) -> dict[str, object]:
    return {
        "reachable": True,
        "observed_at": NOW - timedelta(seconds=age_seconds),
        "age_seconds": age_seconds,
    }


def stale() -> dict[str, object]:
    return {"reachable": False, "observed_at": NOW - timedelta(minutes=7), "age_seconds": 420}


def never() -> dict[str, object]:
    return {"reachable": None, "observed_at": None, "age_seconds": None}


def cluster(name: str, seen: dict[str, object], **changes: object) -> wire.Cluster:
    fields: dict[str, object] = {
        "name": name,
        "engine": EngineKind.SLURM,
        "engine_version": "slurm 24.11.5",
        "reason": None,
        "since": NOW - timedelta(hours=5),
        "pools": ["hpc-a100"],
        "gpus": wire.Counts(total=8000, in_use=6200, free=1704, unhealthy=96),
        "slices": [],
        "gpus_in_no_pool": 0,
    }
    return wire.Cluster.model_validate({**fields, **seen, **changes})


def pool(name: str, of: str, seen: dict[str, object], **changes: object) -> wire.Pool:
    fields: dict[str, object] = {
        "name": name,
        "cluster": of,
        "gpu": "A100-80GB",
        "slice_kinds": [],
        "capacity": Capacity.OWNED,
        "price_per_gpu_hour": Decimal("1.9"),
        "currency": "USD",
        "gpus": counts(32),
        "slices": [],
    }
    return wire.Pool.model_validate({**fields, **seen, **changes})


def counts(total: int, slice_: str | None = None) -> dict[str, object]:
    base: dict[str, object] = {"total": total, "in_use": 12, "free": total - 20, "unhealthy": 8}
    return (
        base
        | {"nodes": 4, "nodes_drained": 1, "nodes_down": 0, "waiting": 40}
        | ({"slice": slice_} if slice_ else {})
    )


def node(name: str, of: str, seen: dict[str, object], **changes: object) -> wire.Node:
    fields: dict[str, object] = {
        "name": name,
        "cluster": of,
        "health": Health.READY,
        "reason": "",
        "since": NOW - timedelta(days=9),
        "devices": [
            {"pool": "hpc-a100", "kind": "gpu:a100", "slice": None}
            | {"total": 8, "in_use": 3, "free": 5, "unhealthy": 0}
        ],
    }
    return wire.Node.model_validate({**fields, **seen, **changes})


def test_clusters() -> None:
    view = clusters_view(
        [
            cluster(
                "cloud", never(), engine=EngineKind.KUBERNETES, engine_version=None, since=None, gpus=None
            ).model_copy(
                update={"reason": wire.Reason(code="NotObserved", message="not observed yet", hint="wait")}
            ),
            cluster("hpc", fresh()),
            cluster("old", stale(), reason=UNREACHABLE, since=NOW - timedelta(minutes=6)),
        ],
        NOW,
        wide=False,
    )
    assert (
        lines(view)
        == """\
CLUSTER  ENGINE         STATE             SINCE  GPUS  IN USE  FREE  UNHEALTHY      AGE
cloud    kubernetes     not observed yet      -     -       -     -          -    never
hpc      slurm 24.11.5  reachable           5 h  8000    6200  1704         96      3 s
old      slurm 24.11.5  unreachable       6 min  8000    6200  1704         96  7 min !"""
    )
    assert list(view.notes) == [
        "cloud: not observed yet",
        "old has been unreachable for 6 min; its last known state is shown",
        "  Unreachable: http://127.0.0.1:1 refused the connection",
        "  hint: is slurmrestd running?",
    ]
    assert view.alarming == {2}


def test_pools() -> None:
    view = pools_view(
        [
            pool("cloud-a100", "cloud", never(), gpus=None, slices=None, capacity=Capacity.ON_DEMAND),
            pool("hpc-a100", "hpc", fresh()),
            pool(
                "hpc-mig",
                "hpc",
                fresh(),
                gpus=counts(0) | {"in_use": 0, "free": 0, "unhealthy": 0},
                slice_kinds=["1g.10gb", "3g.40gb"],
                slices=[counts(56, "1g.10gb"), counts(28, "3g.40gb")],
            ),
            pool("old-a100", "old", stale()),
        ],
        wide=False,
    )
    assert (
        lines(view)
        == """\
POOL        CLUSTER  GPU        SLICE    CAPACITY   TOTAL  IN USE  FREE  UNHEALTHY  WAITING      AGE
cloud-a100  cloud    A100-80GB           on-demand      -       -     -          -        -    never
hpc-a100    hpc      A100-80GB           owned         32      12    12          8       40      3 s
hpc-mig     hpc      A100-80GB  1g.10gb  owned         56      12    36          8       40      3 s
hpc-mig     hpc      A100-80GB  3g.40gb  owned         28      12     8          8       40      3 s
old-a100    old      A100-80GB           owned         32      12    12          8       40  7 min !"""
    )
    assert list(view.notes) == [
        "! old cannot be reached; its last known state is shown",
        "  hint: see the reason with  fairway get clusters",
    ]


def test_wide_pools_have_what_was_measured() -> None:
    now = {"pool": "hpc-a100", "slice": None, "at": "2026-03-01T12:00:00Z"}
    used = SupplyUse.model_validate(now | {"measured_gpus": 11.6, "busy_gpus": 7.25, "idle_gpus": 3})
    view = pools_view([pool("hpc-a100", "hpc", fresh()), pool("b", "hpc", fresh())], wide=True, used=[used])
    heading, first, second = table(view.columns, view.rows, None)
    assert heading.endswith("USD/GPU-HOUR  MEASURED  BUSY  IDLE NOW")
    assert first.split()[-3:] == ["12", "7.2", "3"]
    assert second.endswith("1.90"), "nothing is measured there"
    plain = pools_view([pool("b", "hpc", fresh())], wide=True)
    assert table(plain.columns, plain.rows, None)[0].endswith("USD/GPU-HOUR")


def test_a_loop_that_no_server_runs_stands_out() -> None:
    known = {"lease_expires_at": NOW, "is_here": True, "age_seconds": 7.4, "mean_seconds": 0.031, "errors": 2}
    unknown = {"is_here": False, "age_seconds": None, "mean_seconds": None, "errors": None}
    loops = [
        wire.Loop.model_validate(known | {"loop": "observe", "cluster": "hpc", "server": "host-1:42"}),
        wire.Loop.model_validate(known | unknown | {"loop": "charge", "cluster": None, "server": None}),
    ]
    view = loops_view(loops)
    assert (
        lines(view)
        == """\
LOOP     CLUSTER      SERVER                        LAST SUCCESS  MEAN ROUND  FAILED ROUNDS
observe  hpc          host-1:42                          7 s ago      0.03 s              2
charge   whole fleet  none since 2026-03-01 12:00Z             -           -              -"""
    )
    assert view.alarming == {1}


def test_nodes() -> None:
    view = nodes_view(
        [
            node("n1", "hpc", fresh()),
            node("n2", "hpc", fresh(), health=Health.DRAINED, reason="Kill task failed [root@2026-03-01]"),
            node("n3", "hpc", fresh(), health=Health.DOWN, reason="Not responding", devices=[]),
        ],
        NOW,
        wide=False,
        filtered=False,
    )
    assert (
        lines(view)
        == """\
NODE  CLUSTER  POOL      HEALTH   TOTAL  IN USE  FREE  UNHEALTHY  AGE  REASON
n1    hpc      hpc-a100  ready        8       3     5          0  3 s
n2    hpc      hpc-a100  drained      8       3     5          0  3 s  Kill task failed [root@2026-…
n3    hpc      -         down         -       -     -          -  3 s  Not responding"""
    )


def test_tokens() -> None:
    made = {"created_at": NOW, "created_by": "server", "last_used_at": None}
    view = tokens_view(
        [
            wire.Token.model_validate(
                {
                    "name": "a",
                    "role": Role.ADMIN,
                    "user": "ada",
                    "expires_at": None,
                    "revoked_at": None,
                    **made,
                }
            ),
            wire.Token.model_validate(
                {"name": "b", "role": "viewer", "user": "b", "expires_at": NOW, "revoked_at": None, **made}
            ),
            wire.Token.model_validate(
                {"name": "c", "role": "viewer", "user": "c", "expires_at": None, "revoked_at": NOW, **made}
            ),
        ],
        NOW,
    )
    assert (
        lines(view)
        == """\
TOKEN  ROLE    USER  STATE    EXPIRES            LAST USED  MADE               BY
a      admin   ada   live     never              never      2026-03-01 12:00Z  server
b      viewer  b     expired  2026-03-01 12:00Z  never      2026-03-01 12:00Z  server
c      viewer  c     revoked  never              never      2026-03-01 12:00Z  server"""
    )


def test_the_longest_names_fit_100_columns() -> None:
    node_name = "gpu-node-with-a-very-long-name.rack-17.row-04.dc-frankfurt-2.example.com"
    slices = [counts(100_000, "1g.10gb")]
    views = [
        clusters_view(
            [
                cluster(
                    LONG,
                    stale(),
                    engine=EngineKind.KUBERNETES,
                    engine_version="kubernetes v1.36.3+vendor.20260301",
                )
            ],
            NOW,
            wide=False,
        ),
        pools_view([pool(LONG_POOL, LONG, stale(), slices=slices, capacity=Capacity.ON_DEMAND)], wide=False),
        nodes_view(
            [node(node_name, LONG, stale(), health=Health.DRAINED, reason="the disk is full, says who " * 3)],
            NOW,
            wide=False,
            filtered=False,
        ),
    ]
    for view in views:
        shown = lines(view).splitlines()
        assert max(map(cell_width, shown)) <= 100, shown
        assert all("…" in row for row in shown[1:])
        for column, row in zip(shown[1:], view.rows, strict=True):
            assert row[0][:2] in column and row[0][-2:] in column  # both ends of the name are left
    for view in views:  # and nothing is cut when it may be wide
        assert "…" not in "\n".join(table(view.columns, view.rows, None))
