"""What a server is told: flag, then FAIRWAY_*, then the config file, then the default.

The one module that reads a server's environment and config file. `SETTINGS` is the table the docs are made
from. Secrets never come by flag (everybody on the machine can read those) and are never printed.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from fairway.model.access import Role
from fairway.model.errors import PermanentError

LARGEST_FILE: Final = 1_000_000


class InvalidSettings(PermanentError):
    """One or more settings cannot be used; the message names each, with where it comes from."""


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


def redacted(url: str) -> str:
    """The URL without its passwords, wherever in it they are."""
    # Up to the last @, however many a password that somebody forgot to quote contains.
    named = re.sub(r"^([^:]+://[^:@/]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)\b(\w*password)=[^&]*", r"\1=***", named)


def _words(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("some text")
    return value.strip()


def _database(value: object) -> str:
    url = _words(value)
    if not re.match(r"postgres(ql)?(\+psycopg)?://", url):
        raise ValueError("a URL such as postgresql://USER:PASSWORD@HOST:5432/DATABASE")
    return url


def _folder(value: object) -> Path:
    return Path(_words(str(value))).expanduser().absolute()


def _number(least: float, most: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        expected = f"a number from {least:g} to {most:g}"
        try:
            number = float(str(value))  # a bool is no number here, whatever Python says
        except ValueError:
            raise ValueError(expected) from None
        if not least <= number <= most:
            raise ValueError(expected)
        return number

    return parse


def _port(value: object) -> int:
    number = _number(0, 65535)(value)
    if number != int(number):
        raise ValueError("a whole number from 0 to 65535")
    return int(number)


def _archive(value: object) -> str | None:
    url = _words(value)
    if url == "none":
        return None
    if not re.match(r"(s3a?|gs|az|azure|abfss?|https|file|memory)://", url):
        raise ValueError("a URL such as s3://BUCKET/PREFIX, gs://…, az://… or file:///FOLDER")
    return url


def _months(value: object) -> int:
    number = _number(1, 1200)(value)
    if number != int(number):
        raise ValueError("a whole number from 1 to 1200")
    return int(number)


def _web_address(value: object) -> str:
    url = _words(value).rstrip("/")
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url):
        raise ValueError("a URL such as https://fairway.example.org")
    return url


def _optional(parse: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value == "none" else parse(value)


def _yes_or_no(value: object) -> bool:
    word = str(value).strip().lower()
    if word not in ("yes", "no", "true", "false"):
        raise ValueError("yes or no")
    return word in ("yes", "true")


_ROLES: Final = tuple(role.value for role in Role)


def _group_roles(value: object) -> tuple[tuple[str, str], ...]:
    """`GROUP=ROLE, …`; later ones do not hide earlier ones: the highest role counts."""
    pairs = value.items() if isinstance(value, dict) else _pairs(str(value))
    found = tuple((str(group).strip(), str(role).strip().lower()) for group, role in pairs)
    if any(not group or role not in _ROLES for group, role in found):
        raise ValueError(f"GROUP=ROLE, …  with roles out of {', '.join(_ROLES)}")
    return found


def _pairs(text: str) -> list[tuple[str, str]]:
    words = [] if text.strip() == "none" else [word for word in text.split(",") if word.strip()]
    cut = [word.rpartition("=") for word in words]
    return [(group, role) for group, _, role in cut]


def _one_of(*words: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        word = str(value).strip().lower()
        if word not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return word

    return parse


SETTINGS: Final = (
    Setting(
        "database_url",
        "PostgreSQL that keeps the ledger. Without it, the embedded one is started in the state folder.",
        "none",
        _database,
        secret=True,
    ),
    Setting(
        "database_url_file",
        "File that holds the database URL, e.g. a mounted secret; instead of database_url.",
        "none",
        _folder,
    ),
    Setting("listen_host", "Address the API listens on.", "127.0.0.1", _words),
    Setting("listen_port", "Port the API listens on; 0 takes any free one.", "8470", _port),
    Setting(
        "state_dir",
        "Folder for what this server keeps on disk: the embedded PostgreSQL.",
        "$XDG_STATE_HOME/fairway, else ~/.local/state/fairway; as root /var/lib/fairway",
        _folder,
    ),
    Setting(
        "lease_seconds",
        "How long a server that vanished keeps its work: another takes over within twice this time.",
        "15",
        _number(1, 3600),
    ),
    Setting("observe_seconds", "How often each cluster is looked at.", "10", _number(1, 3600)),
    Setting(
        "drift_seconds",
        "How often each cluster is compared with the fleet that was last applied to it.",
        "30",
        _number(1, 3600),
    ),
    Setting(
        "nudge_seconds",
        "How often an engine that falls a step short of a promise is looked after.",
        "5",
        _number(1, 3600),
    ),
    Setting(
        "budget_seconds",
        "How often what teams spent is compared with their budgets.",
        "10",
        _number(1, 3600),
    ),
    Setting(
        "archive_url",
        "Object store for raw usage of old months (s3://, gs://, az://, file://); it stays answerable."
        " Credentials come from the environment, as the provider's own tools read them.",
        "none",
        _archive,
    ),
    Setting(
        "keep_usage_months",
        "Whole months before the running one whose raw usage stays in PostgreSQL, where there is an archive.",
        "13",
        _months,
    ),
    Setting(
        "public_url",
        "Where people reach the pages, if something in front of the server has another address.",
        "none",
        _optional(_web_address),
    ),
    Setting(
        "session_hours", "How long somebody who signed in to the pages stays so.", "12", _number(0.01, 720)
    ),
    Setting(
        "oidc_issuer",
        "OpenID Connect provider that people sign in with, by its issuer URL. Without it, by token alone.",
        "none",
        _optional(_web_address),
    ),
    Setting("oidc_client_id", "What the provider calls Fairway.", "none", _optional(_words)),
    Setting(
        "oidc_client_secret_file",
        "File with the secret the provider gave Fairway; none for a public client.",
        "none",
        _optional(_folder),
    ),
    Setting(
        "oidc_user_claim",
        "Claim that names the user, as the fleet's members do.",
        "preferred_username",
        _words,
    ),
    Setting("oidc_groups_claim", "Claim that lists the user's groups.", "groups", _words),
    Setting(
        "oidc_roles",
        "Role that each group gives, e.g. platform=admin, leads=lead; everybody else is a member.",
        "none",
        _group_roles,
    ),
    Setting(
        "serve",
        "What this server does: all, api (answer only) or loops (look after the clusters only).",
        "all",
        _one_of("all", "api", "loops"),
    ),
    Setting(
        "migrate",
        "Whether a server brings the ledger's tables forward when it starts; no: something else did.",
        "yes",
        _yes_or_no,
    ),
    Setting(
        "log_level",
        "What is logged: debug, info, warning or error, and all above it.",
        "info",
        _one_of("debug", "info", "warning", "error"),
    ),
    Setting(
        "log_format", "How it is logged: text for people, json for machines.", "text", _one_of("text", "json")
    ),
)

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class _Given:
    """Settings from one place, each with what to call it there."""

    place: str
    values: Mapping[str, object]

    def called(self, name: str) -> str:
        return _BY_NAME[name].variable if self.place == "environment" else f"{name} ({self.place})"


def read_settings(
    flags: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Settle every setting; raises InvalidSettings with all faults. A flag that is None was not given."""
    env = os.environ if environment is None else environment
    faults: list[str] = []
    places = (
        _from_flags(flags or {}, faults),
        _Given("environment", {s.name: env[s.variable] for s in SETTINGS if env.get(s.variable)}),
        _from_file(env, faults),
    )
    settled: dict[str, Any] = dict(_defaults(env))
    for name in _BY_NAME:
        found = next((place for place in places if name in place.values), None)
        if found is None or name.startswith("database_url"):
            continue
        settled[name] = _parsed(found, name, faults)
    settled["database_url"] = _database_url(places, faults)
    if faults:
        raise InvalidSettings(
            "InvalidSettings",
            "; ".join(faults),
            "correct " + ("it" if len(faults) == 1 else "them") + " and start again; nothing was changed",
        )
    return Settings(**settled)


def _defaults(env: Mapping[str, str]) -> Mapping[str, object]:
    state = env.get("XDG_STATE_HOME")
    if state:
        folder = Path(state) / "fairway"
    elif os.geteuid() == 0:
        # Root's home is closed to the user PostgreSQL then has to run as.
        folder = Path("/var/lib/fairway")
    else:
        folder = Path.home() / ".local" / "state" / "fairway"
    plain = [s for s in SETTINGS if s.name not in {"database_url", "database_url_file", "state_dir"}]
    return {"state_dir": folder} | {s.name: s.parse(s.default) for s in plain}


def _from_flags(flags: Mapping[str, object], faults: list[str]) -> _Given:
    given = {name: value for name, value in flags.items() if value is not None}
    faults.extend(
        f"{name} may not be a flag, which everybody on this machine can read: use {_BY_NAME[name].variable}"
        for name in given
        if _BY_NAME[name].secret
    )
    return _Given("flag", {name: value for name, value in given.items() if not _BY_NAME[name].secret})


def _from_file(env: Mapping[str, str], faults: list[str]) -> _Given:
    named = env.get("FAIRWAY_CONFIG")
    home = Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = Path(named).expanduser() if named else home / "fairway" / "server.yaml"
    nothing = _Given(str(path), {})
    try:
        with path.open("rb") as file:
            content = YAML(typ="safe", pure=True).load(file.read(LARGEST_FILE))
    except FileNotFoundError:
        if named:
            faults.append(f"FAIRWAY_CONFIG names {path}, which does not exist")
        return nothing
    except OSError as error:
        faults.append(f"{path} cannot be read: {error.strerror}")
        return nothing
    except (YAMLError, UnicodeDecodeError, ValueError) as error:
        faults.append(f"{path} is not YAML: {str(error).partition(chr(10))[0]}")
        return nothing
    if content is None:
        return nothing
    if not isinstance(content, dict):
        faults.append(f"{path} must hold settings by name, e.g.  listen_port: 8470")
        return nothing
    for key in content:
        if key not in _BY_NAME:
            near = difflib.get_close_matches(str(key), _BY_NAME, n=1)
            faults.append(f"{path} has no setting {key}" + (f"; did you mean {near[0]}?" if near else ""))
    return _Given(str(path), {k: v for k, v in content.items() if k in _BY_NAME and v is not None})


def _parsed(given: _Given, name: str, faults: list[str]) -> object:
    setting, value = _BY_NAME[name], given.values[name]
    try:
        return setting.parse(value)
    except ValueError as error:
        got = "" if setting.secret else f", not {str(value)[:60]!r}"
        faults.append(f"{given.called(name)} must be {error}{got}")
        return None


def _database_url(places: tuple[_Given, ...], faults: list[str]) -> object:
    """From the first place that says anything about it: a URL, or the file that holds one."""
    for place in places:
        url, file = "database_url" in place.values, "database_url_file" in place.values
        if url and file:
            both = f"{place.called('database_url')} and {place.called('database_url_file')}"
            faults.append(f"{both} are both given: keep one")
            return None
        if url:
            return _parsed(place, "database_url", faults)
        if file:
            return _url_in(place, faults)
    return None


def _url_in(place: _Given, faults: list[str]) -> object:
    path = _parsed(place, "database_url_file", faults)
    if not isinstance(path, Path):
        return None
    called = place.called("database_url_file")
    try:
        with path.open(encoding="utf-8") as file:
            content = file.read(LARGEST_FILE)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        faults.append(f"{called} names {path}, which cannot be read: {why}")
        return None
    try:
        return _database(content)
    except ValueError as error:
        faults.append(f"{called} names {path}, which must hold {error}")
        return None
