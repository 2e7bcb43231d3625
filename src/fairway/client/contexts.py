"""Choose the server and token: by flags, then FAIRWAY_* variables, then the user's contexts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fairway.client.private_file import write_private
from fairway.model.errors import PermanentError
from fairway.model.names import NAME_RULE, is_name

# A value that YAML reads as the same text: it begins with a letter or slash and has no mark of YAML's.
_LINE = re.compile(r"( {0,4})([a-z][a-z0-9_-]*):(?: ((?:https?://|[/~.]+|[a-z])[A-Za-z0-9_./:@~+-]*))?")
_NOT_TEXT = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n", "~", ".inf", ".nan"})

_ADD = "fairway context add NAME --url URL --token-file FILE"
_WHERE_FROM = (
    "FAIRWAY_TOKEN_FILE or the context names the file (fairway context list); an admin creates a new token "
    "with  fairway token create NAME --role ROLE > FILE"
)


@dataclass(frozen=True, slots=True)
class Context:
    """A named server. Its token stays in a file of its own."""

    name: str
    url: str
    token_file: str | None = None
    ca_file: str | None = None
    """The certificate authority of the server, if it is not a public one."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """A user's contexts, and the current one, which is the default."""

    current: str | None = None
    entries: tuple[Context, ...] = ()

    def find(self, name: str) -> Context | None:
        """Return the context called `name`, or None."""
        return next((c for c in self.entries if c.name == name), None)

    def get(self, name: str) -> Context:
        """Return the context called `name`. Raises NoSuchContext with the names of all contexts."""
        found = self.find(name)
        if found is None:
            names = ", ".join(c.name for c in self.entries) or "none yet"
            raise PermanentError("NoSuchContext", f"there is no context {name} (contexts: {names})", _ADD)
        return found

    def adding(self, context: Context) -> Contexts:
        """Return contexts with `context`, replacing one of the same name. The first one becomes current."""
        others = [c for c in self.entries if c.name != context.name]
        entries = tuple(sorted([*others, context], key=lambda c: c.name))
        return Contexts(self.current or context.name, entries)

    def removing(self, name: str) -> Contexts:
        """Return contexts without the one called `name`."""
        removed = self.get(name)
        current = None if self.current == name else self.current
        return Contexts(current, tuple(c for c in self.entries if c != removed))

    def using(self, name: str) -> Contexts:
        """Return contexts with `name` as the current one."""
        return replace(self, current=self.get(name).name)


@dataclass(frozen=True, slots=True)
class Target:
    """The server to send requests to, and the token to send."""

    url: str
    token: str | None = field(repr=False)
    ca_file: str | None = None


def validated_context(name: str, url: str, token_file: str | None, ca_file: str | None = None) -> Context:
    """Build a context from user input. Raises PermanentError if it is invalid."""
    if not is_name(name):
        raise PermanentError("InvalidName", f"{name!r} is not a valid name of a context", f"use {NAME_RULE}")
    return Context(name, validated_url(url), token_file, ca_file)


def validated_url(url: str) -> str:
    """Check a server's URL and remove a trailing slash."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise PermanentError(
            "InvalidUrl", f"{url!r} is not the URL of a server", "use a URL such as http://127.0.0.1:8470"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise PermanentError(
            "InvalidUrl", "the URL of a server must not have a user, password, query or fragment", _ADD
        )
    return url.rstrip("/")


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file that stores the contexts."""
    if folder := environment.get("FAIRWAY_CONFIG_DIR"):
        return Path(folder) / "config.yaml"
    home = environment.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "fairway" / "config.yaml"


def read_contexts(path: Path) -> Contexts:
    """Read the contexts in `path`; none if the file does not exist."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeError) as error:
        raise _broken(path, str(error)) from error
    return _parse_as_written(text) or _parse_yaml(path, text)


def _parse_as_written(text: str) -> Contexts | None:
    """Parse what `write_contexts` writes, without a YAML library. Returns None if it is anything else."""
    contexts = Contexts()
    fields: dict[str, str] = {}
    entries: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None or found[2] in _NOT_TEXT or found[3] in _NOT_TEXT:
            return None
        indent, key, value = len(found[1]), found[2], found[3]
        if indent == 0 and key == "current" and value:
            contexts = Contexts(value)
        elif indent == 2 and not value:
            fields = {}
            entries.append((key, fields))
        elif indent == 4 and key in ("url", "token_file", "ca_file") and value and entries:
            fields[key] = value
        elif line != "contexts:":
            return None
    if contexts.current is None or not all("url" in found for _, found in entries):
        return None
    return _contexts_from({"current": contexts.current, "contexts": dict(entries)})


def _parse_yaml(path: Path, text: str) -> Contexts:
    from ruamel.yaml import YAML  # noqa: PLC0415 - slow to import, and seldom needed
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    try:
        return _contexts_from(YAML(typ="safe", pure=True).load(text) or {})
    except (YAMLError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise _broken(path, "it is not a valid list of contexts") from error


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Write `contexts` to `path`."""
    document = {
        "current": contexts.current,
        "contexts": {
            c.name: {
                key: value
                for key, value in (("url", c.url), ("token_file", c.token_file), ("ca_file", c.ca_file))
                if value is not None
            }
            for c in contexts.entries
        },
    }
    from io import StringIO  # noqa: PLC0415

    from ruamel.yaml import YAML  # noqa: PLC0415

    out = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.dump(document, out)
    try:
        write_private(path, out.getvalue())
    except OSError as error:
        raise PermanentError(
            "ConfigNotWritten",
            f"cannot write {path}: {error.strerror}",
            "set FAIRWAY_CONFIG_DIR to a directory that you can write to",
        ) from error


def find_target(
    contexts: Contexts,
    environment: Mapping[str, str],
    *,
    context: str | None = None,
    url: str | None = None,
) -> Target:
    """Choose the server and token. A token is never sent to a server it was not given for."""
    if context is not None:
        chosen = contexts.get(context)
        return Target(chosen.url, _stored_token(chosen) or _environment_token(environment), chosen.ca_file)
    url = url or environment.get("FAIRWAY_URL")
    if url:
        url = validated_url(url)
        known = next((c for c in contexts.entries if c.url == url), Context("", url))
        return Target(url, _environment_token(environment) or _stored_token(known), known.ca_file)
    if contexts.current is None:
        raise PermanentError(
            "NoContext",
            "no server is configured",
            f"add a server:  {_ADD}   or start one:  fairway server -f fleet.yaml   or try:  fairway demo",
        )
    chosen = contexts.get(contexts.current)
    return Target(chosen.url, _environment_token(environment) or _stored_token(chosen), chosen.ca_file)


def chosen_target(
    context: str | None = None, url: str | None = None, environment: Mapping[str, str] = os.environ
) -> Target:
    """Choose the server and token by this user's contexts and environment."""
    return find_target(read_contexts(config_file(environment)), environment, context=context, url=url)


def read_token(path: Path) -> str:
    """Read the token in a file. Raises PermanentError if it is unreadable or not a token."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise PermanentError(
            "TokenNotReadable", f"cannot read the token in {path}: {why}", _WHERE_FROM
        ) from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise PermanentError("TokenNotReadable", f"{path} does not contain a token", _WHERE_FROM)
    return token


def _environment_token(environment: Mapping[str, str]) -> str | None:
    if token := environment.get("FAIRWAY_TOKEN", "").strip():
        if not token.isascii() or not token.isprintable():
            raise PermanentError(
                "TokenNotReadable", "FAIRWAY_TOKEN does not contain a token", "unset FAIRWAY_TOKEN"
            )
        return token
    if path := environment.get("FAIRWAY_TOKEN_FILE"):
        return read_token(Path(path))
    return None


def _stored_token(context: Context) -> str | None:
    return read_token(Path(context.token_file).expanduser()) if context.token_file else None


def _contexts_from(document: Any) -> Contexts:
    entries = tuple(
        Context(str(name), str(c["url"]), c.get("token_file"), c.get("ca_file"))
        for name, c in sorted((document.get("contexts") or {}).items())
    )
    return Contexts(document.get("current"), entries)


def _broken(path: Path, why: str) -> PermanentError:
    return PermanentError(
        "ConfigBroken",
        f"cannot read {path}: {why}",
        f"correct it, or move it away and add the context again:  {_ADD}",
    )
