"""Slurm's tokens: HS256 JWTs that name a user."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time


def mint(key: bytes, user: str, seconds: int = 3600) -> str:
    now = int(time.time())
    head = _part({"alg": "HS256", "typ": "JWT"})
    body = _part({"iat": now, "exp": now + seconds, "sun": user})
    signature = _encoded(hmac.new(key, head + b"." + body, hashlib.sha256).digest())
    return b".".join((head, body, signature)).decode()


def _part(value: dict[str, object]) -> bytes:
    return _encoded(json.dumps(value).encode())


def _encoded(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")
