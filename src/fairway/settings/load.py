"""Load settings from flags, FAIRWAY_* variables, the config file and defaults, in this order.

The only module that reads a server's environment and config file. Secrets are never flags: every user of the
machine can read those.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from fairway.model.errors import PermanentError
from fairway.model.text import nearest
from fairway.settings.settings import BY_NAME, SETTINGS, Settings
from fairway.settings.values import database

MAX_FILE_BYTES: Final = 1_000_000


class InvalidSettings(PermanentError):
    """One or more settings are invalid; the message names each and its source."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Settings from one source: flags, environment or a file."""

    source: str
    values: Mapping[str, object]

    def called(self, name: str) -> str:
        return BY_NAME[name].variable if self.source == "environment" else f"{name} ({self.source})"


def read_settings(
    flags: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Load every setting. Raises InvalidSettings with all faults. A flag that is None was not given."""
    env = os.environ if environment is None else environment
    faults: list[str] = []
    sources = (
        _from_flags(flags or {}, faults),
        _Source("environment", {s.name: env[s.variable] for s in SETTINGS if env.get(s.variable)}),
        _from_file(env, faults),
    )
    values_by_name: dict[str, Any] = {"state_dir": _state_dir(env)}
    for name in BY_NAME:
        found = next((source for source in sources if name in source.values), None)
        if found is None or name.startswith("database_url"):
            continue
        values_by_name[name] = _parsed(found, name, faults)
    values_by_name["database_url"] = _database_url(sources, faults)
    if faults:
        raise InvalidSettings(
            "InvalidSettings",
            "; ".join(faults),
            "correct " + ("it" if len(faults) == 1 else "them") + " and start again; nothing was changed",
        )
    return Settings(**values_by_name)


def _state_dir(env: Mapping[str, str]) -> Path:
    """Find the default of the one setting whose default depends on the environment."""
    state = env.get("XDG_STATE_HOME")
    if state:
        return Path(state) / "fairway"
    if os.geteuid() == 0:
        # Root's home is closed to the user PostgreSQL then has to run as.
        return Path("/var/lib/fairway")
    return Path.home() / ".local" / "state" / "fairway"


def _from_flags(flags: Mapping[str, object], faults: list[str]) -> _Source:
    given = {name: value for name, value in flags.items() if value is not None}
    faults.extend(
        f"{name} may not be a flag, which everybody on this machine can read: use {BY_NAME[name].variable}"
        for name in given
        if BY_NAME[name].secret
    )
    return _Source("flag", {name: value for name, value in given.items() if not BY_NAME[name].secret})


def _from_file(env: Mapping[str, str], faults: list[str]) -> _Source:
    named = env.get("FAIRWAY_CONFIG")
    home = Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = Path(named).expanduser() if named else home / "fairway" / "server.yaml"
    nothing = _Source(str(path), {})
    try:
        with path.open("rb") as file:
            content = YAML(typ="safe", pure=True).load(file.read(MAX_FILE_BYTES))
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
        if key not in BY_NAME:
            near = nearest(str(key), BY_NAME, most=1)
            faults.append(f"{path} has no setting {key}" + (f"; did you mean {near[0]}?" if near else ""))
    return _Source(str(path), {k: v for k, v in content.items() if k in BY_NAME and v is not None})


def _parsed(given: _Source, name: str, faults: list[str]) -> object:
    setting, value = BY_NAME[name], given.values[name]
    try:
        return setting.parse(value)
    except ValueError as error:
        got = "" if setting.secret else f", not {str(value)[:60]!r}"
        faults.append(f"{given.called(name)} must be {error}{got}")
        return None


def _database_url(sources: tuple[_Source, ...], faults: list[str]) -> object:
    """Return the database URL from the first source that has it: as a URL, or in a file. None if none has."""
    for source in sources:
        url, file = "database_url" in source.values, "database_url_file" in source.values
        if url and file:
            both = f"{source.called('database_url')} and {source.called('database_url_file')}"
            faults.append(f"{both} are both given: keep one")
            return None
        if url:
            return _parsed(source, "database_url", faults)
        if file:
            return _url_in(source, faults)
    return None


def _url_in(source: _Source, faults: list[str]) -> object:
    path = _parsed(source, "database_url_file", faults)
    if not isinstance(path, Path):
        return None
    called = source.called("database_url_file")
    try:
        with path.open(encoding="utf-8") as file:
            content = file.read(MAX_FILE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        faults.append(f"{called} names {path}, which cannot be read: {why}")
        return None
    try:
        return database(content)
    except ValueError as error:
        faults.append(f"{called} names {path}, which must hold {error}")
        return None
