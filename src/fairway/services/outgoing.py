"""Check addresses that secrets are sent to."""

from __future__ import annotations

from urllib.parse import urlsplit

from fairway.model.hosts import is_loopback


def is_confidential(url: object) -> bool:
    """Return whether requests to the URL are confidential: https, or loopback."""
    if not isinstance(url, str) or len(url) > 2000 or not url.isprintable():
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    )
