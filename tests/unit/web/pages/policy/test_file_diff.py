"""The fleet file as lines, and what two of them differ in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairway.web.pages.policy.file_diff import diff_lines, file_lines, without_passwords

TEXT = st.lists(st.sampled_from(["a: 1", "  b: 2", "# c", "d:", "- e", ""]), max_size=12).map("\n".join)


@given(st.text(alphabet="ab: #-\"'{}\n", max_size=60))
def test_no_character_of_a_line_is_lost(text: str) -> None:
    shown = [line.indent + line.key + line.rest + line.comment for line in file_lines(text)]
    assert shown == text.splitlines()


def test_keys_and_comments() -> None:
    line, other, quoted = file_lines('  share: 60  # most\n- { a: 1 }\nname: "a # b"')
    assert (line.indent, line.key, line.rest, line.comment) == ("  ", "share:", " 60 ", " # most")
    assert (other.key, other.rest) == ("", "- { a: 1 }")
    assert (quoted.key, quoted.comment) == ("name:", "")


@given(TEXT, TEXT)
def test_a_difference_says_all_that_differs(before: str, after: str) -> None:
    lines = diff_lines(before, after)
    old, new = before.splitlines(), after.splitlines()
    for line in lines:
        if line.sign in "- ":
            assert line.before is not None and old[line.before - 1] == line.text
        if line.sign in "+ " and line.sign != "-":
            assert line.after is not None and new[line.after - 1] == line.text
    gone = {line.before for line in lines if line.sign == "-"}
    come = {line.after for line in lines if line.sign == "+"}
    kept = [text for i, text in enumerate(old, 1) if i not in gone]
    assert kept == [text for i, text in enumerate(new, 1) if i not in come]


def test_a_password_is_not_shown() -> None:
    assert without_passwords("url: https://me:secret@host/x") == "url: https://…@host/x"
    assert without_passwords("mail: me@host, a: b@c") == "mail: me@host, a: b@c"
