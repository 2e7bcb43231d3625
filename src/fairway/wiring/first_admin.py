"""The first token of a ledger, for whoever started the server."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from fairway.api.access import hash_secret, new_secret
from fairway.client.private import write_private
from fairway.ledger import Ledger, TokenNameTaken
from fairway.model.access import Role
from fairway.model.errors import PermanentError

ADMIN_TOKEN: Final = "admin.token"  # noqa: S105 - a file name
_MOST_ADMINS: Final = 100


async def make_first_admin(ledger: Ledger, state_dir: Path) -> bool:
    """On a ledger without any token, make one and keep it where only this user can read it."""
    if await ledger.has_tokens():
        return False
    secret = new_secret()
    # The file comes first: a token that nobody can read any more would lock everybody out. Under a name of
    # its own until the token is: a server that starts here at the same moment writes another secret.
    own = state_dir / f"{ADMIN_TOKEN}.{secrets.token_hex(4)}"
    _write_token(own, secret)
    for number in range(1, _MOST_ADMINS):
        try:
            await ledger.create_token(
                "admin" if number == 1 else f"admin-{number}", Role.ADMIN, hash_secret(secret), "first start"
            )
        except TokenNameTaken:
            if await ledger.has_tokens():  # another server was faster
                own.unlink(missing_ok=True)
                return False
        else:
            own.replace(state_dir / ADMIN_TOKEN)
            return True
    raise PermanentError(
        "NoAdmin",
        f"{_MOST_ADMINS - 1} admin tokens were made and none is valid any more",
        "revoke less, or start with another database",
    )


def _write_token(file: Path, secret: str) -> None:
    try:
        write_private(file, secret + "\n")
    except OSError as error:
        raise PermanentError(
            "StateNotWritable",
            f"cannot write {file}: {error.strerror}",
            "fairway server --state-dir DIR  chooses another folder",
        ) from error
