"""Define the JSON of signing in from the command line."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fairway.wire.fleet import MadeToken, RequestBody, Wire

Verifier = Annotated[str, Field(min_length=43, max_length=128, pattern=r"^[A-Za-z0-9._~-]+$")]


class NewLogin(RequestBody):
    """A sign-in that a person is to confirm in a browser."""

    challenge: str = Field(
        min_length=43,
        max_length=43,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="SHA-256 of the verifier in base64url without padding, as in PKCE (S256)",
    )
    host: str = Field(
        default="", max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$", description="shown to the person"
    )
    port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="where it listens on 127.0.0.1 for the browser; null: the person enters the code",
    )


class Login(Wire):
    """A sign-in that waits for a person."""

    code: str = Field(examples=["WDJB-MJHT"], description="what the person enters, or compares")
    path: str = Field(description="of the page to open in a browser")
    expires_in_seconds: int
    poll_seconds: float = Field(description="ask no more often whether it was confirmed")


class LoginRedemption(RequestBody):
    """Whether a sign-in was confirmed."""

    verifier: Verifier
    code: str | None = Field(
        default=None, max_length=128, description="what the browser brought to the port; null: there is none"
    )


class LoginResult(Wire):
    """A token, once the person has confirmed the sign-in."""

    token: MadeToken | None = Field(description="null: nobody has confirmed it yet; ask again")
