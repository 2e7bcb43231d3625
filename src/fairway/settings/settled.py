"""Settings as a server has them, fit to be logged: no secret is ever printed."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """What a server needs to know before it can read the fleet."""

    database_url: str | None
    """None: the embedded PostgreSQL, with its data in `state_dir`."""
    listen_host: str
    listen_port: int
    state_dir: Path
    lease_seconds: float
    observe_seconds: float
    drift_seconds: float
    nudge_seconds: float
    budget_seconds: float
    log_level: str
    log_format: str
    archive_url: str | None = None
    """None: raw usage stays in PostgreSQL for good."""
    keep_usage_months: int = 13
    public_url: str | None = None
    """Where people reach the pages; None: wherever they asked."""
    session_hours: float = 12
    oidc_issuer: str | None = None
    oidc_client_id: str | None = None
    oidc_client_secret_file: Path | None = None
    oidc_user_claim: str = "preferred_username"
    oidc_groups_claim: str = "groups"
    oidc_roles: tuple[tuple[str, str], ...] = ()
    """Groups and the role each gives."""
    serve: str = "all"
    """What this server does: all, only answer (api), or only run loops (loops)."""
    migrate: bool = True
    """Whether it brings the ledger's tables forward when it starts."""

    def shown(self) -> dict[str, object]:
        """Every setting by name, fit to be logged."""
        values: dict[str, object] = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {
            "database_url": redacted(self.database_url) if self.database_url else None,
            "archive_url": redacted(self.archive_url).partition("?")[0] if self.archive_url else None,
        }

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"


def redacted(url: str) -> str:
    """The URL without its passwords, wherever in it they are."""
    # Up to the last @, however many a password that somebody forgot to quote contains.
    named = re.sub(r"^([^:]+://[^:@/]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)\b(\w*password)=[^&]*", r"\1=***", named)
