"""Tell this machine's own addresses from those of others."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Report whether a host name or address means this machine, without a look-up of the name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
