"""Tables never break a row, never grow beyond what was asked while a column can give way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairway.cli.output.format import Column, Fit, cell_width, shorten, table
from fairway.cli.output.messages import fold
from fairway.model.text import clean

NAMES = Column("NAME", fit=Fit.MIDDLE)
WORDS = Column("WHY", fit=Fit.END)
COUNT = Column("N", right=True)


def test_columns_line_up() -> None:
    lines = table([NAMES, COUNT], [["a", "1"], ["long-name", "200"]], 100)
    assert lines == ["NAME         N", "a            1", "long-name  200"]


def test_names_lose_their_middle_and_sentences_their_end() -> None:
    assert shorten("gpu-node-rack-17-slot-03", 11, Fit.MIDDLE) == "gpu-n…ot-03"
    assert shorten("Not responding since noon", 8, Fit.END) == "Not res…"
    assert shorten("fits", 4, Fit.MIDDLE) == "fits"


def test_sentences_give_way_before_names() -> None:
    lines = table([NAMES, WORDS], [["n" * 20, "w" * 40]], 40)
    assert lines[1] == "n" * 20 + "  " + "w" * 17 + "…"


def test_empty_columns_can_hide() -> None:
    columns = [NAMES, Column("SLICE", hide_if_empty=True)]
    assert table(columns, [["a", ""]], 100) == ["NAME", "a"]
    assert table(columns, [["a", "1g.10gb"]], 100) == ["NAME  SLICE", "a     1g.10gb"]


def test_an_engines_words_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[2Jb\nc\td\u202e") == "a[2Jb c d"


def test_wide_letters_count_twice() -> None:
    assert cell_width("日本") == 4
    assert table([NAMES, COUNT], [["日本", "1"]], 100)[1] == "日本  1"


def test_sentences_fold_between_words() -> None:
    assert fold("  hint: do one thing and then another", 20) == [
        "  hint: do one thing",
        "    and then another",
    ]
    assert fold("", 20) == [""]


@given(
    st.lists(st.tuples(st.text(max_size=60), st.text(max_size=80), st.integers(0, 10**6)), min_size=1),
    st.integers(40, 120),
)
def test_whatever_it_holds_it_fits(rows: list[tuple[str, str, int]], width: int) -> None:
    lines = table([NAMES, WORDS, COUNT], [[a, b, str(n)] for a, b, n in rows], width)
    assert len(lines) == len(rows) + 1
    assert all(cell_width(line) <= width for line in lines)
    assert all("\n" not in line and "\x1b" not in line for line in lines)
    # What must not be cut is not cut: counts are the last column and stay whole.
    assert [line.rsplit(" ", 1)[-1] for line in lines[1:]] == [str(n) for _, _, n in rows]
