"""Free ports of 127.0.0.1, alone or in rows."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterable
from pathlib import Path

LOWEST = 20_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def highest() -> int:
    """The last port below those that the kernel hands out to outgoing connections."""
    try:
        first_ephemeral = int(EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        first_ephemeral = 32_768
    return first_ephemeral - 1 if first_ephemeral > LOWEST + 5_000 else 65_535


def free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is no obstacle to a listener
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def all_free(ports: Iterable[int]) -> bool:
    return all(free(port) for port in ports)


def spare(count: int = 1) -> range:
    """A row for what is no instance and soon gone, above the ports of instances: a daemon of theirs that is
    down must find its port free when it comes back. At random, for somebody else may choose right now."""
    return choose(count, (), random.randrange(highest() - 5_000, highest() - 100))


def choose(count: int, taken: Collection[int], lowest: int = LOWEST) -> range:
    """The first row of `count` neighbouring ports that nobody listens on and nobody has been promised."""
    run = 0
    for port in range(lowest, highest() + 1):
        run = run + 1 if port not in taken and free(port) else 0
        if run == count:
            return range(port - count + 1, port + 1)
    raise LookupError(f"no row of {count} free ports between {lowest} and {highest()}")
