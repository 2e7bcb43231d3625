from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.engines.slurm.nodes.devices import Gres, NodeShares, parse_gres, shares_of, shares_per_gpu


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("", ()),
        ("(null)", ()),
        ("N/A", ()),
        ("gpu", (Gres("gpu", None, 1),)),
        ("gpu:4", (Gres("gpu", None, 4),)),
        ("gpu:a100", (Gres("gpu", "a100", 1),)),
        ("gpu:a100:8", (Gres("gpu", "a100", 8),)),
        ("gpu:a100:8(S:0-1)", (Gres("gpu", "a100", 8, "S:0-1"),)),
        ("gpu:a100:0(IDX:N/A)", (Gres("gpu", "a100", 0, "IDX:N/A"),)),
        ("gpu:a100:3(IDX:0,2,5)", (Gres("gpu", "a100", 3, "IDX:0,2,5"),)),
        ("gpu:1g.10gb:4,gpu:3g.40gb:2", (Gres("gpu", "1g.10gb", 4), Gres("gpu", "3g.40gb", 2))),
        (
            "gpu:l4:2(IDX:0-1),shard:l4:3(-/4,-/4,3/4,0/4)",
            (Gres("gpu", "l4", 2, "IDX:0-1"), Gres("shard", "l4", 3, "-/4,-/4,3/4,0/4")),
        ),
        ("gpu:a100:4(S:0),gpu:a100:4(S:1)", (Gres("gpu", "a100", 4, "S:0"), Gres("gpu", "a100", 4, "S:1"))),
        ("gpu:(null):2(IDX:0-1)", (Gres("gpu", None, 2, "IDX:0-1"),)),
        ("gpu:a100:no_consume:2", (Gres("gpu", "a100", 2),)),
        ("bandwidth:4G", (Gres("bandwidth", None, 4 * 2**30),)),
        ("shard:16", (Gres("shard", None, 16),)),
    ],
)
def test_what_a_gres_string_lists(text: str, listed: tuple[Gres, ...]) -> None:
    assert parse_gres(text) == listed


@pytest.mark.parametrize(
    ("detail", "shares"),
    [
        ("", ()),
        ("S:0-1", ()),
        ("0/4,0/4", ((0, 4), (0, 4))),
        ("-/4,3/4,1/4", ((0, 4), (3, 4), (1, 4))),
        ("50/100,0/0", ((50, 100), (0, 0))),
        ("IDX:0-3", ()),
    ],
)
def test_shares_of_each_gpu(detail: str, shares: tuple[tuple[int, int], ...]) -> None:
    assert shares_of(detail) == shares


@pytest.mark.parametrize(
    ("gres", "used", "found"),
    [
        ("gpu:l4:4", "gpu:l4:0(IDX:N/A)", {}),
        ("gpu:l4:4,shard:l4:16", "", {"shard": NodeShares("l4", 4)}),
        ("gpu:4,shard:16", "", {"shard": NodeShares(None, 4)}),
        ("gpu:a40:2,mps:a40:200", "mps:a40:0(0/100,0/100)", {"mps": NodeShares("a40", 100)}),
        ("gpu:l4:4,shard:l4:8", "shard:l4:3(3/8,0/0,0/0,0/0)", {"shard": NodeShares("l4", 8)}),  # on one GPU
        ("gpu:l4:3,shard:l4:16", "", {"shard": NodeShares("l4", 6)}),  # never more than the GPUs
    ],
)
def test_how_the_gpus_of_a_node_are_shared(gres: str, used: str, found: dict[str, NodeShares]) -> None:
    assert shares_per_gpu(gres, used) == found


words = st.text(alphabet="abcdefgh0123456789._-", min_size=1, max_size=12)
# a type of digits alone, perhaps with a unit, would be a count
types = st.one_of(st.none(), words.map(lambda word: f"x{word}x"))
details = st.text(alphabet="SIDX:0123456789-,/", max_size=20)
listings = st.lists(
    st.builds(Gres, words.map(lambda w: f"g{w}"), types, st.integers(0, 10**6), details), max_size=6
)


@given(listings)
def test_what_is_printed_is_what_is_read(listing: list[Gres]) -> None:
    printed = ",".join(
        ":".join(filter(None, (gres.name, gres.type, str(gres.count))))
        + (f"({gres.detail})" if gres.detail else "")
        for gres in listing
    )

    assert parse_gres(printed) == tuple(listing)


@given(st.text(alphabet="gpu:a100(),SIDX0-9/ NA\n", max_size=60))
def test_nothing_slurm_may_print_makes_it_fail(text: str) -> None:
    for gres in parse_gres(text):
        assert gres.count >= 0
        assert all(used >= 0 and all_ >= 0 for used, all_ in shares_of(gres.detail))
    shares_per_gpu(text, text)
