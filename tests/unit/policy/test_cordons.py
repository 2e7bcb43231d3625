"""A pool never loses more nodes than its rule allows, however many fail at once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from fairway.model.gpu_health import HealthAction, HealthRule
from fairway.model.names import NodeName, PoolName
from fairway.policy.health import BrokenGpu, NodeState, decide_cordons

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
POOLS = tuple(PoolName(name) for name in ("a", "b", "c"))
CORDON = HealthRule("broken", action=HealthAction.CORDON)


def node(number: int, *pools: str, closed: bool = False) -> NodeState:
    return NodeState(NodeName(f"n{number:03}"), frozenset(map(PoolName, pools or ("a",))), closed)


def broken(number: int, code: str = "xid-79", after: float = 0) -> BrokenGpu:
    return BrokenGpu(NodeName(f"n{number:03}"), "3", code, NOON + timedelta(seconds=after))


def by_name(*nodes: NodeState) -> dict[NodeName, NodeState]:
    return {one.name: one for one in nodes}


def closing(*found: BrokenGpu, nodes: dict[NodeName, NodeState], rules: tuple[HealthRule, ...]) -> list[str]:
    return [one.node for one in decide_cordons(found, nodes, rules) if one.full is None]


def test_nothing_is_closed_unless_a_rule_says_so() -> None:
    nodes = by_name(*map(node, range(10)))
    assert closing(broken(1), nodes=nodes, rules=()) == []
    assert closing(broken(1), nodes=nodes, rules=(HealthRule("show"),)) == []
    assert closing(broken(1), nodes=nodes, rules=(CORDON,)) == ["n001"]
    assert closing(broken(1, "hot"), nodes=nodes, rules=(CORDON,)) == []


def test_the_first_rule_that_matches_counts() -> None:
    spare = HealthRule("spare", events=("xid-74",), pools=(PoolName("a"),))
    nodes = by_name(node(1), node(2, "b"))
    assert closing(broken(1, "xid-74"), broken(2, "xid-74"), nodes=nodes, rules=(spare, CORDON)) == ["n002"]


def test_thirty_nodes_fail_at_once() -> None:
    nodes = by_name(*map(node, range(100)))
    found = [broken(n, after=n) for n in range(30)]
    decided = decide_cordons(found, nodes, (CORDON,))
    assert [one.node for one in decided if one.full is None] == [f"n{n:03}" for n in range(10)]
    assert {one.full for one in decided if one.full is not None} == {PoolName("a")}
    assert len(decided) == 30


def test_nodes_that_people_closed_count() -> None:
    nodes = by_name(*(node(n, closed=n >= 92) for n in range(100)))
    assert len(closing(*(broken(n) for n in range(30)), nodes=nodes, rules=(CORDON,))) == 2


def test_a_small_pool_may_lose_one_node() -> None:
    assert closing(broken(0), broken(1), nodes=by_name(node(0), node(1)), rules=(CORDON,)) == ["n000"]
    already = by_name(node(0), node(1), node(2, closed=True))
    assert closing(broken(0), nodes=already, rules=(CORDON,)) == []


_RULES = st.builds(
    HealthRule,
    st.just("rule"),
    events=st.sampled_from([("hardware",), ("xid-74",), ("hardware", "reset")]),
    pools=st.lists(st.sampled_from(POOLS), unique=True).map(tuple),
    action=st.sampled_from(HealthAction),
    max_share=st.integers(1, 100).map(lambda part: Decimal(part) / 100),
    max_nodes=st.none() | st.integers(1, 20),
)
_NODES = st.lists(
    st.tuples(st.sets(st.sampled_from(["a", "b", "c"]), min_size=1), st.booleans()), max_size=60
).map(lambda rows: by_name(*(node(n, *pools, closed=closed) for n, (pools, closed) in enumerate(rows))))
_BROKEN = st.lists(
    st.tuples(st.integers(0, 70), st.sampled_from(["xid-79", "xid-74", "xid-63", "xid-31", "hot", "gone"])),
    max_size=80,
)


@given(_NODES, _BROKEN, st.lists(_RULES, max_size=4))
def test_the_limit_holds_whatever_fails(
    nodes: dict[NodeName, NodeState], found: list[tuple[int, str]], rules: list[HealthRule]
) -> None:
    """Round after round with the same events, as the loop has them: the limit holds after each."""
    events = [broken(number, code, after) for after, (number, code) in enumerate(found)]
    total = Counter(pool for one in nodes.values() for pool in one.pools)
    before = Counter(pool for one in nodes.values() if one.closed for pool in one.pools)
    for _ in range(3):
        decided = [one for one in decide_cordons(events, nodes, rules) if one.full is None]
        for one in decided:
            assert not nodes[one.node].closed
            nodes = nodes | {one.node: NodeState(one.node, nodes[one.node].pools, closed=True)}
        closed = Counter(pool for one in nodes.values() if one.closed for pool in one.pools)
        for pool in total:
            most = max((rule.most(total[pool]) for rule in rules), default=0)
            assert closed[pool] <= max(before[pool], most)
    assert not [one for one in decide_cordons(events, nodes, rules) if one.full is None]
