"""Which server, which token: the order, and that a token never goes where it does not belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.client.contexts import (
    Context,
    Contexts,
    _parse_as_written,
    _parse_yaml,
    config_file,
    find_target,
    read_contexts,
    validated_context,
    write_contexts,
)
from fairway.model.errors import FairwayError


@pytest.fixture
def contexts(tmp_path: Path) -> Contexts:
    for name in ("one", "two"):
        (tmp_path / f"{name}.token").write_text(f"fw_{name}\n")
    return Contexts(
        "one",
        (
            Context("one", "http://127.0.0.1:1", str(tmp_path / "one.token")),
            Context("two", "https://two.example", str(tmp_path / "two.token")),
        ),
    )


@pytest.mark.parametrize(
    ("environment", "context", "url", "wanted"),
    [
        ({}, None, None, ("http://127.0.0.1:1", "fw_one")),
        ({}, "two", None, ("https://two.example", "fw_two")),
        ({"FAIRWAY_TOKEN": "fw_env"}, "two", None, ("https://two.example", "fw_two")),
        ({"FAIRWAY_TOKEN": "fw_env"}, None, None, ("http://127.0.0.1:1", "fw_env")),
        ({"FAIRWAY_URL": "https://two.example/"}, None, None, ("https://two.example", "fw_two")),
        ({"FAIRWAY_URL": "https://else.example"}, None, None, ("https://else.example", None)),
        ({"FAIRWAY_URL": "https://two.example"}, None, "http://x.example", ("http://x.example", None)),
        ({"FAIRWAY_URL": "https://two.example"}, "one", None, ("http://127.0.0.1:1", "fw_one")),
        (
            {"FAIRWAY_URL": "https://else.example", "FAIRWAY_TOKEN": "fw_env"},
            None,
            None,
            ("https://else.example", "fw_env"),
        ),
    ],
)
def test_order(
    contexts: Contexts,
    environment: dict[str, str],
    context: str | None,
    url: str | None,
    wanted: tuple[str, str | None],
) -> None:
    target = find_target(contexts, environment, context=context, url=url)
    assert (target.url, target.token) == wanted
    assert "fw_" not in repr(target)


def test_a_token_file_of_the_environment(contexts: Contexts, tmp_path: Path) -> None:
    environment = {"FAIRWAY_TOKEN_FILE": str(tmp_path / "two.token")}
    assert find_target(contexts, environment).token == "fw_two"


def test_written_contexts_come_back_and_are_private(contexts: Contexts, tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.yaml"
    assert read_contexts(path) == Contexts()
    write_contexts(path, contexts)
    assert read_contexts(path) == contexts
    assert path.stat().st_mode & 0o077 == 0
    assert "fw_one" not in path.read_text()


def test_add_use_remove(contexts: Contexts) -> None:
    first = Contexts().adding(Context("a", "http://a"))
    assert first.current == "a"
    assert contexts.adding(Context("zwei", "http://z")).current == "one"
    assert contexts.using("two").current == "two"
    assert contexts.removing("one") == Contexts(None, (contexts.entries[1],))
    with pytest.raises(FairwayError, match="contexts: one, two"):
        contexts.using("three")


@pytest.mark.parametrize(
    "text", ["[", "- a", "contexts: 3", "contexts: {a: {}}", "contexts: {a: [url]}", "\0"]
)
def test_a_broken_file_is_an_error_with_a_hint(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(FairwayError) as caught:
        read_contexts(path)
    assert caught.value.code == "ConfigBroken"
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8470",
        "ftp://x",
        "http://",
        "http://user:pw@x",
        "http://x?a=1",
        "http://[",
        "http://x:y",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(FairwayError) as caught:
        validated_context("a", url, None)
    assert caught.value.code == "InvalidUrl"


@pytest.mark.parametrize("content", [b"", b"two words", b"caf\xc3\xa9", b"\xff\xfe", b"a\x00b"])
def test_a_token_file_without_a_token(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(FairwayError) as caught:
        find_target(Contexts("a", (Context("a", "http://a", str(tmp_path / "t")),)), {})
    assert caught.value.code == "TokenNotReadable"


def test_where_the_file_is() -> None:
    assert config_file({"FAIRWAY_CONFIG_DIR": "/a", "XDG_CONFIG_HOME": "/b"}) == Path("/a/config.yaml")
    assert config_file({"XDG_CONFIG_HOME": "/b"}) == Path("/b/fairway/config.yaml")
    assert config_file({}) == Path.home() / ".config" / "fairway" / "config.yaml"


@pytest.mark.parametrize(
    ("text", "fast"),
    [
        ("contexts:\n  a:\n    url: http://x:1\ncurrent: a\n", True),
        ("contexts:\n  a:\n    token_file: /t/a.token\n    url: https://x\ncurrent: a\n", True),
        ("contexts:\n  a:\n    url: 'http://x:1'\ncurrent: a\n", False),
        ("contexts: {a: {url: http://x:1}}\ncurrent: a\n", False),
        ("contexts:\n  no:\n    url: http://x:1\ncurrent: no\n", False),
        ("contexts:\n  a:\n    url: http://x:1\ncurrent: null\n", False),
        ("# mine\ncurrent: a\ncontexts:\n  a:\n    url: http://x:1 # there\n", False),
        ("contexts: {}\ncurrent: null\n", False),
    ],
)
def test_what_we_write_is_read_without_a_yaml_library(tmp_path: Path, text: str, fast: bool) -> None:
    quick = _parse_as_written(text)
    assert (quick is not None) is fast
    if quick is not None:
        assert quick == _parse_yaml(tmp_path, text)


def test_contexts_survive_a_round_trip_fast(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    entries = (Context("demo", "http://127.0.0.1:42153", "/tmp/a b/admin.token"),)
    for each in (Contexts("demo", entries), Contexts(None, entries), Contexts()):
        write_contexts(path, each)
        assert read_contexts(path) == each
