"""The command `fairway server`."""

from __future__ import annotations

from pathlib import Path

import click

from fairway.cli.parameter import ParsedParam

_EXAMPLES = """\b
Examples:
  fairway server -f examples/quickstart.yaml      a simulated cluster, nothing else needed
  fairway server -f fleet.yaml --listen 127.0.0.1:9000
  FAIRWAY_DATABASE_URL=postgresql://… fairway server -f fleet.yaml
\b
Then, in another terminal:
  fairway get pools
"""


def parse_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, [IPV6]:PORT or a port; the host defaults to loopback."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address; write it like 127.0.0.1:8470")
    return host.strip("[]") or "127.0.0.1", int(port)


_ADDRESS = ParsedParam("listen", parse_address)


@click.command(epilog=_EXAMPLES)
@click.option("-f", "--file", metavar="FILE", type=click.Path(path_type=Path), help="The fleet file.")
@click.option(
    "--listen", type=_ADDRESS, metavar="HOST:PORT", help="Address of the API.  [default: 127.0.0.1:8470]"
)
@click.option(
    "--state-dir", metavar="DIR", help="Directory for data of this server, such as the embedded PostgreSQL."
)
@click.option(
    "--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TLS certificate chain."
)
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TLS private key."
)
@click.option("--insecure-listen", is_flag=True, help="Allow a public address without TLS.")
def server(
    *,
    file: Path | None,
    listen: tuple[str, int] | None,
    state_dir: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure_listen: bool,
) -> None:
    """Run the Fairway server.

    The server watches the clusters, applies the policy and serves the API and the web pages. Without a fleet
    file it uses the one that it was given before. Without FAIRWAY_DATABASE_URL it starts its own PostgreSQL.
    Ctrl-C stops it gracefully, a second Ctrl-C immediately.
    """
    from fairway.cli.shared.local_context import announce
    from fairway.cli.shared.log import configure_logs
    from fairway.server import ServerOptions, serve
    from fairway.settings import read_settings

    host, port = listen or (None, None)
    settings = read_settings({"listen_host": host, "listen_port": port, "state_dir": state_dir})
    configure_logs(settings.log_level, settings.log_format)
    serve(
        ServerOptions(settings, file, tls_cert, tls_key, insecure_listen),
        lambda started: announce(started, tls_cert),
    )
