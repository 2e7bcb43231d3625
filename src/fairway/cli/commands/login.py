"""The commands `fairway login` and `fairway logout`: sign in to a server in the browser."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
import webbrowser
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import click

from fairway.cli import completion
from fairway.client.client import Client
from fairway.client.contexts import (
    Context,
    Contexts,
    Target,
    config_file,
    read_contexts,
    read_token,
    validated_context,
    validated_url,
    write_contexts,
)
from fairway.client.http import ServerRefused
from fairway.client.login import BrowserListener, LoginSecret
from fairway.client.private_file import write_private
from fairway.model.errors import FairwayError, PermanentError
from fairway.model.hosts import is_loopback
from fairway.wire.fleet import MadeToken, zulu


@click.command(
    epilog="""\b
Examples:
  fairway login https://fairway.example.org    sign in in the browser
  fairway login                                sign in again to the server in use
  fairway login URL --device                   on a machine without a browser
"""
)
@click.argument("url", required=False)
@click.option(
    "--context",
    "name",
    metavar="NAME",
    help="Name of the context to create or update.",
    shell_complete=completion.contexts,
)
@click.option("--device", is_flag=True, help="Show a code to enter in a browser on another machine.")
@click.option(
    "--ca-file", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="CA of the server."
)
def login(url: str | None, name: str | None, device: bool, ca_file: str | None) -> None:
    """Sign in to a server with your organisation's account."""
    path = config_file()
    contexts = read_contexts(path)
    context = login_context(contexts, url, name, ca_file and str(Path(ca_file).absolute()))
    if context.url.startswith("http:") and not is_loopback(urlsplit(context.url).hostname or ""):
        raise PermanentError(
            "NotEncrypted",
            f"{context.url} is not encrypted, and signing in there would show your token to the network",
            "use the https address of the server",
        )
    with Client(Target(context.url, None, context.ca_file)) as client:
        token = _sign_in(client, context.url, device=device or not has_browser())
    file = path.parent / f"{context.name}.token"
    write_private(file, f"{token.secret}\n")
    write_contexts(path, contexts.adding(replace(context, token_file=str(file))).using(context.name))
    until = f" until {zulu(token.expires_at)}" if token.expires_at else ""
    click.echo(
        f"Signed in to {context.url} as {token.user} ({token.role}){until}; the context is {context.name}",
        err=True,
    )
    for variable in ("FAIRWAY_TOKEN", "FAIRWAY_TOKEN_FILE", "FAIRWAY_URL"):
        if os.environ.get(variable):
            click.echo(f"note: {variable} is set and takes precedence over the context", err=True)


@click.command(
    epilog="""\b
Examples:
  fairway logout
  fairway logout --context prod
"""
)
@click.option(
    "--context",
    "name",
    metavar="NAME",
    help="Context to use (see `fairway context list`).",
    shell_complete=completion.contexts,
)
def logout(name: str | None) -> None:
    """Sign out and revoke the token of this machine."""
    path = config_file()
    contexts = read_contexts(path)
    chosen = name or contexts.current
    if chosen is None:
        raise PermanentError("NoContext", "no server is selected", "fairway context list")
    context = contexts.get(chosen)
    file = path.parent / f"{context.name}.token"
    if context.token_file != str(file):
        raise PermanentError(
            "NotALogin",
            f"the token of the context {chosen} was not created by  fairway login",
            f"remove the context instead:  fairway context remove {chosen}",
        )
    failure: FairwayError | None = None
    try:
        with Client(Target(context.url, read_token(file), context.ca_file)) as client:
            client.log_out()
    except ServerRefused as error:
        failure = None if error.code == "TokenNotValid" else error  # it has expired, or was revoked
    except FairwayError as error:
        failure = error
    file.unlink(missing_ok=True)
    write_contexts(path, contexts.adding(replace(context, token_file=None)))
    if failure is not None:
        click.echo(f"The token was deleted here but not revoked: {failure.message}", err=True)
        raise failure
    click.echo(f"Signed out of {context.url}", err=True)


def login_context(contexts: Contexts, url: str | None, name: str | None, ca_file: str | None) -> Context:
    """Choose the context to create or update: by name, by URL, or the current one."""
    if url is None:
        chosen = name or contexts.current
        if chosen is None:
            raise click.UsageError(
                "give the URL of a server, as in  fairway login https://fairway.example.org"
            )
        found = contexts.get(chosen)
        return replace(found, ca_file=ca_file or found.ca_file)
    url = validated_url(url)
    known = next((c for c in contexts.entries if c.url == url and name in (None, c.name)), None)
    if known is not None:
        return replace(known, ca_file=ca_file or known.ca_file)
    return validated_context(name or _name_of(urlsplit(url).hostname or ""), url, None, ca_file)


def _name_of(host: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")[:33].strip("-")
    return plain if plain[:1].isalpha() else f"server-{plain}".rstrip("-")


def has_browser(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Return whether a browser can be opened on the machine that the person sits at."""
    if environment.get("SSH_CONNECTION"):
        return False
    if platform in ("darwin", "win32"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def _sign_in(client: Client, url: str, *, device: bool) -> MadeToken:
    """Begin a sign-in and wait until the person has confirmed it."""
    secret = LoginSecret.new()
    listener = None if device else BrowserListener()
    with listener or nullcontext():
        begun = client.begin_login(
            secret.challenge, socket.gethostname()[:64], listener.port if listener else None
        )
        address = f"{url}{begun.path}"
        if listener is None:
            click.echo(f"Open this page in any browser and sign in:\n\n    {address}\n", err=True)
            click.echo(f"Then enter this code:\n\n    {begun.code}\n", err=True)
        else:
            click.echo(
                f"Opening your browser. If it does not open, use this address:\n\n    {address}\n", err=True
            )
            click.echo(f"The page must show this code:  {begun.code}\n", err=True)
            with suppress(webbrowser.Error):
                webbrowser.open(address)
        deadline = time.monotonic() + begun.expires_in_seconds
        while time.monotonic() < deadline:
            code = None
            if listener is not None:
                code = listener.code(begun.poll_seconds)
            else:
                time.sleep(begun.poll_seconds)
            token = client.redeem_login(secret.verifier, code).token
            if token is not None:
                return token
    raise PermanentError(
        "LoginEnded",
        "nobody confirmed the sign-in within ten minutes",
        "begin again:  fairway login",
    )
