"""Tokens that slurmrestd passes on to slurmctld: signed here, or read from a file that is renewed outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from fairway.engines.port import Refused
from fairway.model.fleet import SlurmConnection

LIFETIME_SECONDS: Final = 300
"""Short, so that a leaked token soon expires."""
RENEW_SECONDS: Final = 120
"""Renewed when so little is left: more than a request may take, plus a margin for clock differences."""
MOST_KEPT: Final = 10_000
"""Users whose tokens are cached at once."""


class Tokens:
    """Provides valid tokens; reads the files only when it must."""

    def __init__(self, connection: SlurmConnection, clock: Callable[[], float] = time.time) -> None:
        self._connection = connection
        self._clock = clock
        self._signed: dict[str, tuple[str, float]] = {}
        """By user: a token and when it expires."""

    def current(self) -> str:
        """Return a token for the connection's user. Raises Refused if none is available."""
        if self._connection.token_file is not None:
            return _from_file(self._connection.token_file)
        if self._connection.jwt_key_file is None:
            raise Refused(
                "CredentialsMissing",
                "the cluster names neither a jwt_key_file nor a token_file",
                "add  credentials: { jwt_key_file: PATH }  to the cluster in the fleet file",
            )
        return self._good(self._connection.user, self._connection.jwt_key_file)

    def of(self, user: str) -> str:
        """Return a token for any user. Raises Refused without the cluster's key."""
        if self._connection.token_file is not None or self._connection.jwt_key_file is None:
            raise Refused(
                "CannotActForUsers",
                f"with a token of {self._connection.user} alone, no job can be sent as {user}",
                "give Fairway the cluster's key:  credentials: { jwt_key_file: PATH }",
            )
        return self._good(user, self._connection.jwt_key_file)

    def kept(self, user: str) -> str | None:
        """Return a cached token that is still valid. Reads no file. Returns None if there is none."""
        token, expires = self._signed.get(user, ("", 0.0))
        return token if self._clock() <= expires - RENEW_SECONDS else None

    def forget(self) -> None:
        """Drop cached tokens after a rejection, so that the key, which may have changed, is read again."""
        self._signed.clear()

    def _good(self, user: str, key_file: str) -> str:
        return self.kept(user) or self._sign(user, key_file)

    def _sign(self, user: str, key_file: str) -> str:
        now = int(self._clock())
        if len(self._signed) >= MOST_KEPT:
            self._signed.clear()
        key = _read(key_file)
        claims = {"sun": user, "iat": now, "exp": now + LIFETIME_SECONDS}
        try:
            token = jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(key))
        except (JoseError, ValueError) as error:
            raise Refused(
                "CredentialsUnusable",
                f"{key_file} holds no key that can sign: {error}",
                "name a copy of the file in slurm.conf's  AuthAltParameters=jwt_key=PATH",
            ) from error
        self._signed[user] = (token, now + LIFETIME_SECONDS)
        return token


def _from_file(token_file: str) -> str:
    text = _read(token_file).decode("ascii", errors="replace").strip()
    token = text.removeprefix("SLURM_JWT=")  # as `scontrol token` prints it
    if not token.isascii() or len(token.split()) != 1:
        raise Refused(
            "CredentialsUnusable",
            f"{token_file} does not hold one token",
            f"scontrol token username=USER lifespan=86400 > {token_file}",
        )
    return token


def _read(name: str) -> bytes:
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise Refused(
            "CredentialsUnreadable",
            f"cannot read {name}: {error.strerror}",
            f"let the user of this server read it:  ls -l {name}",
        ) from error
    if not content.strip():
        raise Refused("CredentialsUnusable", f"{name} is empty", f"ls -l {name}")
    return content
