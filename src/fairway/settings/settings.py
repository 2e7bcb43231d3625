"""Every setting of a server: name, meaning, allowed values; and the values a server runs with.

Each is declared once, as a field of `Settings`. `SETTINGS`, which flags, environment, config file and docs
follow, is derived from the fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from fairway.settings.values import (
    Value,
    archive,
    database,
    folder,
    group_roles,
    mail_address,
    mail_server,
    number,
    one_of,
    optional,
    web_address,
    whole,
    words,
    yes_or_no,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: a setting's name, meaning, default and parser."""

    name: str
    help: str
    default: str
    """As shown in the docs."""
    parse: Callable[[object], object]
    """Raises ValueError with the expected value."""
    secret: bool = False

    @property
    def variable(self) -> str:
        return f"FAIRWAY_{self.name.upper()}"


def _row(
    meaning: str, default: str, parse: Callable[[object], object], *, secret: bool = False
) -> dict[str, Any]:
    """Build the metadata of a field: its `Setting` but for the name."""
    return {"help": meaning, "default": default, "parse": parse, "secret": secret}


def _setting(meaning: str, default: str, parse: Callable[[object], Value]) -> Value:
    """Declare a field with the default that the docs show, parsed."""
    return field(default=parse(default), metadata=_row(meaning, default, parse))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Settings:
    """The loaded settings of a server."""

    database_url: str | None = field(
        default=None,
        metadata=_row(
            "PostgreSQL database of the ledger. Without it, an embedded PostgreSQL is started in the "
            "state directory.",
            "none",
            database,
            secret=True,
        ),
    )
    """None means the embedded PostgreSQL, with its data in `state_dir`."""
    listen_host: str = _setting("Address the API listens on.", "127.0.0.1", words)
    listen_port: int = _setting("Port the API listens on; 0 takes any free one.", "8470", whole(0, 65535))
    state_dir: Path = field(
        metadata=_row(
            "Directory for the data of this server: the embedded PostgreSQL.",
            "$XDG_STATE_HOME/fairway, else ~/.local/state/fairway; as root /var/lib/fairway",
            folder,
        )
    )
    lease_seconds: float = _setting(
        "How long leases of a server are valid: if it fails, another takes over within twice this time.",
        "15",
        number(1, 3600),
    )
    observe_seconds: float = _setting("How often each cluster is observed.", "10", number(1, 3600))
    drift_seconds: float = _setting(
        "How often each cluster is compared with the fleet that was last applied to it.",
        "30",
        number(1, 3600),
    )
    intervention_seconds: float = _setting(
        "How often Fairway checks whether an engine needs an intervention to keep a promise.",
        "5",
        number(1, 3600),
    )
    budget_seconds: float = _setting(
        "How often the spending of teams is compared with their budgets.", "10", number(1, 3600)
    )
    starts_seconds: float = _setting(
        "How often it is forecast when the waiting jobs of each cluster start.", "60", number(5, 86_400)
    )
    archive_url: str | None = _setting(
        "Object store for raw usage of old months (s3://, gs://, az://, file://); it stays answerable."
        " Credentials come from the environment, as the provider's own tools read them.",
        "none",
        archive,
    )
    """None means that raw usage stays in PostgreSQL forever."""
    keep_usage_months: int = _setting(
        "Whole months before the running one whose raw usage stays in PostgreSQL, where there is an archive.",
        "13",
        whole(1, 1200),
    )
    max_open_jobs_user: int = _setting(
        "Jobs of one user, tasks of arrays counted, that may be queued, held or running at a time.",
        "20000",
        whole(1, 10_000_000),
    )
    max_open_jobs_team: int = _setting(
        "Jobs of one team, without those of teams inside it, that may be queued, held or running at a time.",
        "100000",
        whole(1, 10_000_000),
    )
    public_url: str | None = _setting(
        "Where people reach the pages, if something in front of the server has another address.",
        "none",
        optional(web_address),
    )
    """None: wherever they asked."""
    session_hours: float = _setting(
        "How long somebody who signed in to the pages stays so.", "12", number(0.01, 720)
    )
    oidc_issuer: str | None = _setting(
        "OpenID Connect provider that people sign in with, by its issuer URL. Without it, by token alone.",
        "none",
        optional(web_address),
    )
    oidc_client_id: str | None = _setting("What the provider calls Fairway.", "none", optional(words))
    oidc_client_secret_file: Path | None = _setting(  # noqa: RUF009 - it returns a field
        "File with the secret the provider gave Fairway; none for a public client.", "none", optional(folder)
    )
    oidc_user_claim: str = _setting(
        "Claim that names the user, as the fleet's members do.", "preferred_username", words
    )
    oidc_groups_claim: str = _setting("Claim that lists the user's groups.", "groups", words)
    oidc_roles: tuple[tuple[str, str], ...] = _setting(
        "Role that each group gives, e.g. platform=admin, leads=lead; else oidc_default_role counts.",
        "none",
        group_roles,
    )
    oidc_default_role: str = _setting(
        "Role of who is in none of these groups: member, or none, who cannot sign in.",
        "member",
        one_of("member", "none"),
    )
    smtp_url: str | None = _setting(
        "Mail server for notices: smtp://HOST:PORT, which must offer STARTTLS unless it is on this machine,"
        " or smtps://HOST:PORT. Without it, nothing is sent by mail.",
        "none",
        optional(mail_server),
    )
    smtp_from: str = _setting("Sender of notices by mail.", "fairway@localhost", mail_address)
    smtp_user: str | None = _setting(
        "User at the mail server; none: it asks for no password.", "none", optional(words)
    )
    smtp_password_file: Path | None = _setting(  # noqa: RUF009 - it returns a field
        "File with the password of smtp_user.", "none", optional(folder)
    )
    mail_domain: str | None = _setting(
        "Domain of users' mail addresses: who is concerned by a notice gets it at USER@DOMAIN. none: only the"
        " channels of the fleet file do.",
        "none",
        optional(words),
    )
    serve: str = _setting(
        "What this server does: all, api (answer only) or loops (look after the clusters, and answer only"
        " what other servers ask about them: see engine_server).",
        "all",
        one_of("all", "api", "loops"),
    )
    engine_server: str | None = _setting(
        "URL of a server that looks after the clusters. One with  serve: api  then needs no credentials of"
        " clusters: it forwards what asks one.",
        "none",
        optional(web_address),
    )
    """None: this server asks engines itself."""
    engine_server_ca: Path | None = _setting(  # noqa: RUF009 - it returns a field
        "File with the certificate authority of that server; none: those of the machine.",
        "none",
        optional(folder),
    )
    migrate: bool = _setting(
        "Whether a server brings the ledger's tables forward when it starts; no: something else did.",
        "yes",
        yes_or_no,
    )
    log_level: str = _setting(
        "What is logged: debug, info, warning or error, and all above it.",
        "info",
        one_of("debug", "info", "warning", "error"),
    )
    log_format: str = _setting(
        "How it is logged: text for people, json for machines.", "text", one_of("text", "json")
    )

    def shown(self) -> dict[str, object]:
        """Return every setting by name, safe to log."""
        values: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {
            "database_url": redacted(self.database_url) if self.database_url else None,
            "archive_url": redacted(self.archive_url).partition("?")[0] if self.archive_url else None,
        }

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"


# Read in place of database_url, so it is no value of `Settings`.
_URL_FILE: Final = Setting(
    "database_url_file",
    "File that holds the database URL, e.g. a mounted secret; instead of database_url.",
    "none",
    folder,
)

_rows: Final = [Setting(f.name, **f.metadata) for f in fields(Settings)]
SETTINGS: Final = (_rows[0], _URL_FILE, *_rows[1:])
BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def redacted(url: str) -> str:
    """Return the URL without its passwords, wherever in it they are."""
    # Up to the last @, however many a password that somebody forgot to quote contains.
    named = re.sub(r"^([^:]+://[^:@/]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)\b(\w*password)=[^&]*", r"\1=***", named)
