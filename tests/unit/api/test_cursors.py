"""Cursors come back as they went out, and nothing else passes for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.api.cursors import decode_cursor, encode_cursor
from fairway.api.problems import ApiError

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=100)


@given(names, names)
def test_round_trip(cluster: str, name: str) -> None:
    cursor = encode_cursor(cluster, name)
    assert cursor.isascii() and cursor.replace("-", "").replace("_", "").isalnum()
    assert decode_cursor(cursor, 2) == (cluster, name)


@given(st.text(max_size=200))
def test_anything_else_is_refused_by_name(text: str) -> None:
    try:
        key = decode_cursor(text, 2)
    except ApiError as error:
        assert (error.status, error.code) == (422, "InvalidCursor")
    else:
        assert decode_cursor(encode_cursor(*key), 2) == key


@pytest.mark.parametrize(
    "cursor", [encode_cursor("one"), encode_cursor("a", "b\0"), "W10", "é", "[" * 2000, "bnVsbA"]
)
def test_foreign_cursors(cursor: str) -> None:
    with pytest.raises(ApiError):
        decode_cursor(cursor, 2)
