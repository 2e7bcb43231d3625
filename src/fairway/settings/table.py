"""Every setting: how it is called, what it means, what it may be. The docs are made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairway.settings.values import (
    archive,
    database,
    folder,
    group_roles,
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
    """One row of the table: how a setting is called, what it means, what it may be."""

    name: str
    help: str
    default: str
    """As the docs show it."""
    parse: Callable[[object], object]
    """Raises ValueError with what was expected."""
    secret: bool = False

    @property
    def variable(self) -> str:
        return f"FAIRWAY_{self.name.upper()}"


SETTINGS: Final = (
    Setting(
        "database_url",
        "PostgreSQL that keeps the ledger. Without it, the embedded one is started in the state folder.",
        "none",
        database,
        secret=True,
    ),
    Setting(
        "database_url_file",
        "File that holds the database URL, e.g. a mounted secret; instead of database_url.",
        "none",
        folder,
    ),
    Setting("listen_host", "Address the API listens on.", "127.0.0.1", words),
    Setting("listen_port", "Port the API listens on; 0 takes any free one.", "8470", whole(0, 65535)),
    Setting(
        "state_dir",
        "Folder for what this server keeps on disk: the embedded PostgreSQL.",
        "$XDG_STATE_HOME/fairway, else ~/.local/state/fairway; as root /var/lib/fairway",
        folder,
    ),
    Setting(
        "lease_seconds",
        "How long a server that vanished keeps its work: another takes over within twice this time.",
        "15",
        number(1, 3600),
    ),
    Setting("observe_seconds", "How often each cluster is looked at.", "10", number(1, 3600)),
    Setting(
        "drift_seconds",
        "How often each cluster is compared with the fleet that was last applied to it.",
        "30",
        number(1, 3600),
    ),
    Setting(
        "nudge_seconds",
        "How often an engine that falls a step short of a promise is looked after.",
        "5",
        number(1, 3600),
    ),
    Setting(
        "budget_seconds",
        "How often what teams spent is compared with their budgets.",
        "10",
        number(1, 3600),
    ),
    Setting(
        "archive_url",
        "Object store for raw usage of old months (s3://, gs://, az://, file://); it stays answerable."
        " Credentials come from the environment, as the provider's own tools read them.",
        "none",
        archive,
    ),
    Setting(
        "keep_usage_months",
        "Whole months before the running one whose raw usage stays in PostgreSQL, where there is an archive.",
        "13",
        whole(1, 1200),
    ),
    Setting(
        "public_url",
        "Where people reach the pages, if something in front of the server has another address.",
        "none",
        optional(web_address),
    ),
    Setting(
        "session_hours", "How long somebody who signed in to the pages stays so.", "12", number(0.01, 720)
    ),
    Setting(
        "oidc_issuer",
        "OpenID Connect provider that people sign in with, by its issuer URL. Without it, by token alone.",
        "none",
        optional(web_address),
    ),
    Setting("oidc_client_id", "What the provider calls Fairway.", "none", optional(words)),
    Setting(
        "oidc_client_secret_file",
        "File with the secret the provider gave Fairway; none for a public client.",
        "none",
        optional(folder),
    ),
    Setting(
        "oidc_user_claim",
        "Claim that names the user, as the fleet's members do.",
        "preferred_username",
        words,
    ),
    Setting("oidc_groups_claim", "Claim that lists the user's groups.", "groups", words),
    Setting(
        "oidc_roles",
        "Role that each group gives, e.g. platform=admin, leads=lead; everybody else is a member.",
        "none",
        group_roles,
    ),
    Setting(
        "serve",
        "What this server does: all, api (answer only) or loops (look after the clusters only).",
        "all",
        one_of("all", "api", "loops"),
    ),
    Setting(
        "migrate",
        "Whether a server brings the ledger's tables forward when it starts; no: something else did.",
        "yes",
        yes_or_no,
    ),
    Setting(
        "log_level",
        "What is logged: debug, info, warning or error, and all above it.",
        "info",
        one_of("debug", "info", "warning", "error"),
    ),
    Setting(
        "log_format", "How it is logged: text for people, json for machines.", "text", one_of("text", "json")
    ),
)

BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
