"""The first token of a ledger: one, and whoever started the server can read it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.server.first_admin import ADMIN_TOKEN, make_first_admin
from fairway.services.tokens import hash_secret


def written(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_servers_that_start_at_once_in_one_folder_make_one_token_that_works(
    ledger: Ledger, tmp_path: Path
) -> None:
    made = await asyncio.gather(*(make_first_admin(ledger, tmp_path) for _ in range(5)))
    assert sorted(made) == [False] * 4 + [True]
    (file,) = written(tmp_path)
    assert (file.name, file.stat().st_mode & 0o777) == (ADMIN_TOKEN, 0o600)
    token = await ledger.tokens.by_hash(hash_secret(file.read_text().strip()))
    assert token is not None
    assert token.role is Role.ADMIN
    assert await ledger.tokens.all() == (token,)


async def test_a_ledger_that_has_a_token_gets_no_other(ledger: Ledger, tmp_path: Path) -> None:
    await ledger.tokens.create("ci", Role.VIEWER, b"hash", "test")
    assert not await make_first_admin(ledger, tmp_path)
    assert written(tmp_path) == []
