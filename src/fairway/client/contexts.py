"""Which server and which token: flags, then FAIRWAY_* variables, then the user's contexts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from fairway.client.private_file import write_private
from fairway.model.errors import PermanentError
from fairway.model.names import NAME_RULE, is_name

_ADD = "fairway context add NAME --url URL --token-file FILE"
_WHERE_FROM = (
    "FAIRWAY_TOKEN_FILE, or the context in use, names the file; fairway context list  shows contexts, and an "
    "admin makes a new token with  fairway token create NAME --role ROLE > FILE"
)


@dataclass(frozen=True, slots=True)
class Context:
    """A server by name. The token stays in its own file."""

    name: str
    url: str
    token_file: str | None = None
    ca_file: str | None = None
    """Certificate authority of the server, if it is not a public one."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts a user has, and which one is used unless said otherwise."""

    current: str | None = None
    known: tuple[Context, ...] = ()

    def find(self, name: str) -> Context | None:
        """The context called `name`."""
        return next((c for c in self.known if c.name == name), None)

    def get(self, name: str) -> Context:
        """The context called `name`, or an error that lists those there are."""
        found = self.find(name)
        if found is None:
            names = ", ".join(c.name for c in self.known) or "none yet"
            raise PermanentError("NoSuchContext", f"there is no context {name} (there are: {names})", _ADD)
        return found

    def adding(self, context: Context) -> Contexts:
        """With `context`, in place of one of the same name. The first one becomes current."""
        others = tuple(c for c in self.known if c.name != context.name)
        known = tuple(sorted((*others, context), key=lambda c: c.name))
        return Contexts(self.current or context.name, known)

    def removing(self, name: str) -> Contexts:
        """Without the context called `name`."""
        gone = self.get(name)
        return Contexts(
            None if self.current == name else self.current, tuple(c for c in self.known if c != gone)
        )

    def using(self, name: str) -> Contexts:
        """With `name` as the current one."""
        return replace(self, current=self.get(name).name)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send a request, and as whom."""

    url: str
    token: str | None = field(repr=False)
    ca_file: str | None = None


def checked_context(name: str, url: str, token_file: str | None, ca_file: str | None = None) -> Context:
    """A context as a user typed it, or an error that says what is wrong with it."""
    if not is_name(name):
        raise PermanentError("InvalidName", f"{name!r} cannot name a context", f"use {NAME_RULE}")
    return Context(name, checked_url(url), token_file, ca_file)


def checked_url(url: str) -> str:
    """The URL without a trailing slash."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise PermanentError(
            "InvalidUrl", f"{url!r} is not the URL of a server", "write it like http://127.0.0.1:8470"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise PermanentError(
            "InvalidUrl", "the URL of a server holds no user, password, query or fragment", _ADD
        )
    return url.rstrip("/")


def config_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the contexts are kept."""
    if folder := environment.get("FAIRWAY_CONFIG_DIR"):
        return Path(folder) / "config.yaml"
    home = environment.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "fairway" / "config.yaml"


def read_contexts(path: Path) -> Contexts:
    """The contexts in `path`; none if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeError) as error:
        raise _broken(path, str(error)) from error
    try:
        return _contexts_from(YAML(typ="safe", pure=True).load(text) or {})
    except (YAMLError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise _broken(path, "it does not hold contexts as Fairway writes them") from error


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Keep `contexts` in `path`."""
    document = {
        "current": contexts.current,
        "contexts": {
            c.name: {
                key: value
                for key, value in (("url", c.url), ("token_file", c.token_file), ("ca_file", c.ca_file))
                if value is not None
            }
            for c in contexts.known
        },
    }
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
            "set FAIRWAY_CONFIG_DIR to a folder of yours",
        ) from error


def find_target(
    contexts: Contexts,
    environment: Mapping[str, str],
    *,
    context: str | None = None,
    url: str | None = None,
) -> Target:
    """Which server to ask, as whom. A token is never sent to a server it was not given for."""
    if context is not None:
        chosen = contexts.get(context)
        return Target(chosen.url, _token_of(chosen) or _token_in(environment), chosen.ca_file)
    url = url or environment.get("FAIRWAY_URL")
    if url:
        url = checked_url(url)
        same = next((c for c in contexts.known if c.url == url), Context("", url))
        return Target(url, _token_in(environment) or _token_of(same), same.ca_file)
    if contexts.current is None:
        raise PermanentError(
            "NoContext",
            "no server is chosen",
            f"start one here:  fairway server -f fleet.yaml   or name one:  {_ADD}   or try:  fairway demo",
        )
    chosen = contexts.get(contexts.current)
    return Target(chosen.url, _token_in(environment) or _token_of(chosen), chosen.ca_file)


def chosen_target(
    context: str | None = None, url: str | None = None, environment: Mapping[str, str] = os.environ
) -> Target:
    """Which server and token this user's contexts and environment name."""
    return find_target(read_contexts(config_file(environment)), environment, context=context, url=url)


def read_token(path: Path) -> str:
    """The token in a file."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise PermanentError(
            "TokenNotReadable", f"cannot read the token in {path}: {why}", _WHERE_FROM
        ) from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise PermanentError("TokenNotReadable", f"{path} does not hold a token", _WHERE_FROM)
    return token


def _token_in(environment: Mapping[str, str]) -> str | None:
    if token := environment.get("FAIRWAY_TOKEN", "").strip():
        if not token.isascii() or not token.isprintable():
            raise PermanentError(
                "TokenNotReadable", "FAIRWAY_TOKEN does not hold a token", "unset FAIRWAY_TOKEN"
            )
        return token
    if path := environment.get("FAIRWAY_TOKEN_FILE"):
        return read_token(Path(path))
    return None


def _token_of(context: Context) -> str | None:
    return read_token(Path(context.token_file).expanduser()) if context.token_file else None


def _contexts_from(document: Any) -> Contexts:
    known = tuple(
        Context(str(name), str(c["url"]), c.get("token_file"), c.get("ca_file"))
        for name, c in sorted((document.get("contexts") or {}).items())
    )
    return Contexts(document.get("current"), known)


def _broken(path: Path, why: str) -> PermanentError:
    return PermanentError(
        "ConfigBroken", f"cannot read {path}: {why}", f"mend it, or move it away and add again:  {_ADD}"
    )
