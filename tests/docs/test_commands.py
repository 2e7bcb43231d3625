"""Every command of pages about the fleet acme is typed on one server, and must do what the page shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.desk import follow_page, page_name
from tests.docs.reading import INSTALLS, ROOT, blocks, console, pages, stage, typed_pages
from tests.integration.server_process import Home, temporary_home

pytestmark = pytest.mark.timeout(900)

ELSEWHERE = ("tutorial", "slurm-lab", "kubernetes-lab", "wheel", "deploy")
"""Where else they are typed: tests/lab/test_tutorial.py, tests/docs/test_lab_pages.py, CI with the wheel."""
MAX_NOT_RUN = 11
ACME = ROOT / "tests/docs/acme.yaml"
IN_LAB = ("slurm-lab", "kubernetes-lab", "tutorial", "deploy")


@pytest.fixture(scope="module")
def acme() -> Iterator[Home]:
    """A server with the fleet of the docs, and a reader who is alice and may do everything."""
    with temporary_home() as home:
        server = home.start("-f", str(ACME), "--listen", "127.0.0.1:0", FAIRWAY_INTERVENTION_SECONDS="2")
        for arguments in (
            ("apply", "-f", str(ACME), "--yes"),
            ("token", "create", "alice", "--role", "admin"),
        ):
            done = home.fairway(*arguments, FAIRWAY_URL=server.url, FAIRWAY_TOKEN_FILE=str(home.token_file))
            assert done.returncode == 0, done.stderr
        (home.folder / "alice.token").write_text(done.stdout)
        home.environment |= {
            "FAIRWAY_URL": server.url,
            "FAIRWAY_TOKEN_FILE": str(home.folder / "alice.token"),
        }
        yield home
        server.stop()


@pytest.mark.parametrize("page", typed_pages("acme"), ids=page_name)
def test_every_command_does_what_the_page_shows(page: Path, acme: Home) -> None:
    try:
        reached = {name: acme.environment[name] for name in ("FAIRWAY_URL", "FAIRWAY_TOKEN_FILE")}
        follow_page(page, reached, ACME)
    finally:
        if "fairway apply" in page.read_text():  # the next page finds it as it was
            acme.fairway("apply", "-f", str(ACME), "--yes", "--force")


def test_every_stage_is_typed_somewhere() -> None:
    known = ("acme", "empty", "ledger", *IN_LAB)
    assert [page_name(page) for page in pages() if stage(page) not in known] == []


def test_what_is_not_typed_is_said_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    left_out, elsewhere = [], []
    for page in pages():
        for block in console(page):
            number = len(block.commands)
            if reason := block.says("not run"):
                left_out += [f"{block.where}: {number}, {reason}"] * number
            elif where := block.says("runs") or (stage(page) if stage(page) in IN_LAB else ""):
                assert where in ELSEWHERE, block.where
                elsewhere += [f"{block.where}: {number}, {where}"] * number
            else:
                installs = sum(bool(INSTALLS.search(one.command)) for one in block.commands)
                elsewhere += [f"{block.where}: {installs}, wheel"] * installs
    with capsys.disabled():
        print(f"\ntyped elsewhere: {len(elsewhere)}", *sorted(set(elsewhere)), sep="\n  ")  # noqa: T201
        print(f"not run: {len(left_out)}", *sorted(set(left_out)), sep="\n  ")  # noqa: T201
    assert len(left_out) <= MAX_NOT_RUN


def test_commands_stand_in_blocks_that_are_typed() -> None:
    """A `$ ` outside a console block would never be tried."""
    loose = [
        block.where
        for page in pages()
        for block in blocks(page)
        if block.language in ("", "text", "bash", "sh", "shell")
        and any(line.startswith(("$ ", "fairway ", "python -m lab")) for line in block.text.splitlines())
    ]
    assert loose == [], "make these ```console blocks"
