"""Create the first token of a ledger, for the user who started the server."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from fairway.client.private_file import write_private
from fairway.ledger import Ledger, TokenNameTaken
from fairway.model.access import Role
from fairway.model.errors import PermanentError
from fairway.services.tokens import hash_secret, new_secret

ADMIN_TOKEN: Final = "admin.token"  # noqa: S105 - a file name
_MAX_ADMINS: Final = 100


async def make_first_admin(ledger: Ledger, state_dir: Path) -> bool:
    """Create an admin token, in a private file, if the ledger has no valid token. Returns whether it did."""
    if await ledger.tokens.any_live():
        return False
    secret = new_secret()
    # Write the file first: a token that nobody can read would lock everybody out. Use a temporary name until
    # the token is created: a server that starts here at the same time writes another secret.
    own = state_dir / f"{ADMIN_TOKEN}.{secrets.token_hex(4)}"
    _write_token(own, secret)
    for number in range(1, _MAX_ADMINS):
        try:
            await ledger.tokens.create(
                "admin" if number == 1 else f"admin-{number}", Role.ADMIN, hash_secret(secret), "first start"
            )
        except TokenNameTaken:
            if await ledger.tokens.any_live():  # another server was faster
                own.unlink(missing_ok=True)
                return False
        else:
            own.replace(state_dir / ADMIN_TOKEN)
            return True
    raise PermanentError(
        "NoAdmin",
        f"{_MAX_ADMINS - 1} admin tokens were created, and none is valid any more",
        "start with another database, or restore a valid admin token from a backup",
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
