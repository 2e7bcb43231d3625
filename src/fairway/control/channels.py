"""Deliver a notice by a channel: webhook, Slack or mail. Each attempt has a time limit, and follows nothing.

Addresses come from an admin's fleet file, or from a file that it names. What a receiver answers is not shown:
only its status is.
"""

from __future__ import annotations

import asyncio
import hashlib
import smtplib
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx2
import msgspec

from fairway.model.channel import Channels, Mail, Slack, Webhook
from fairway.model.fleet import Fleet
from fairway.model.hosts import is_loopback
from fairway.model.job import format_job_id
from fairway.model.names import TeamName
from fairway.model.notice import Notice
from fairway.model.team import TeamTree
from fairway.services.outgoing import is_confidential
from fairway.settings import Settings

SEND_SECONDS: Final = 10.0
_MAX_FILE_BYTES: Final = 64 * 1024
_OPERATORS: Final = "*"
"""Whose channels those of the fleet are: no team is called so."""


class NotDelivered(Exception):
    """An attempt failed; the text says why, and contains no secret."""


@dataclass(frozen=True, slots=True)
class Target:
    """A channel that a notice goes to."""

    id: str
    """Whose it is, and its kind: `research/slack`, `*/mail` of the operators, `@alice/mail`."""
    channel: Webhook | Slack | Mail

    @property
    def kind(self) -> str:
        return self.id.rpartition("/")[2]


def targets_of(notice: Notice, fleet: Fleet, mail_domain: str | None) -> tuple[Target, ...]:
    """Return the channels that a notice goes to."""
    tree = TeamTree(fleet.teams)
    found: list[Target] = []
    if notice.team is not None and notice.team in tree:
        own = tree.channels(tree[notice.team])
        found += [] if own is None else _targets(*own)
    if notice.operators and fleet.notify is not None:
        found += _targets(_OPERATORS, fleet.notify)
    if notice.user is not None and mail_domain is not None:
        address = notice.user if "@" in notice.user else f"{notice.user}@{mail_domain}"
        found.append(Target(f"@{notice.user}/mail", Mail((address,))))
    return tuple(found)


def _targets(owner: TeamName | str, channels: Channels) -> Iterator[Target]:
    for kind, channel in (("webhook", channels.webhook), ("slack", channels.slack), ("mail", channels.mail)):
        if channel is not None:
            yield Target(f"{owner}/{kind}", channel)


class Sender:
    """Sends notices by HTTP and by mail."""

    def __init__(self, settings: Settings, *, seconds: float = SEND_SECONDS) -> None:
        self._settings = settings
        self._seconds = seconds
        self._http = httpx2.AsyncClient(timeout=seconds, trust_env=False, follow_redirects=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, notice: Notice, created_at: datetime, target: Target) -> None:
        """Deliver a notice. Raises NotDelivered."""
        try:
            async with asyncio.timeout(self._seconds):
                match target.channel:
                    case Webhook(url, url_file, token_file):
                        headers = {"Idempotency-Key": delivery_key(notice, target)}
                        if token_file is not None:
                            headers["Authorization"] = f"Bearer {await _secret(token_file)}"
                        address = url if url is not None else await _secret_url(url_file)
                        await self._post(address, self._as_json(notice, created_at), headers)
                    case Slack(url_file):
                        text = f"*{_slack(notice.subject)}*\n{_slack(self._body(notice))}"
                        await self._post(await _secret_url(url_file), {"text": text}, {})
                    case Mail(to):
                        message = self._message(notice, created_at, target, to)
                        await asyncio.to_thread(self._send_mail, message)
        except TimeoutError:
            raise NotDelivered(f"no answer within {self._seconds:g} s") from None

    async def _post(self, url: str, body: Mapping[str, object], headers: Mapping[str, str]) -> None:
        content = msgspec.json.encode(body)
        try:
            async with self._http.stream(
                "POST", url, content=content, headers={"Content-Type": "application/json", **headers}
            ) as response:
                status = response.status_code  # the body is not read: nothing of it is needed
        except httpx2.HTTPError as error:
            # The text of an error may contain the address, and with it a secret.
            raise NotDelivered(f"{_host(url)} is not reachable: {type(error).__name__}") from None
        except httpx2.InvalidURL:
            raise NotDelivered("the address is not a URL") from None
        if not 200 <= status < 300:
            raise NotDelivered(f"{_host(url)} answers {status}")

    def _as_json(self, notice: Notice, created_at: datetime) -> dict[str, object]:
        return {
            "version": 1,
            "key": notice.key,
            "subject": notice.subject,
            "text": notice.text,
            "team": notice.team,
            "user": notice.user,
            "job": None if notice.job is None else format_job_id(notice.job),
            "job_url": self._job_url(notice),
            "operators": notice.operators,
            "created_at": created_at.isoformat(),
        }

    def _job_url(self, notice: Notice) -> str | None:
        base = self._settings.public_url
        return None if base is None or notice.job is None else f"{base}/jobs/{format_job_id(notice.job)}"

    def _body(self, notice: Notice) -> str:
        link = self._job_url(notice)
        return notice.text if link is None else f"{notice.text}\n{link}"

    def _message(
        self, notice: Notice, created_at: datetime, target: Target, to: tuple[str, ...]
    ) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = f"Fairway: {notice.subject}"
        message["From"] = self._settings.smtp_from
        message["To"] = ", ".join(to)
        message["Date"] = format_datetime(created_at)
        message["Message-ID"] = f"<{delivery_key(notice, target)}@fairway>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(self._body(notice))
        return message

    def _send_mail(self, message: EmailMessage) -> None:
        url = self._settings.smtp_url
        if url is None:
            raise NotDelivered("the server has no mail server: set FAIRWAY_SMTP_URL")
        parts = urlsplit(url)
        host = parts.hostname or ""
        try:
            with self._connected(parts.scheme, host, parts.port) as smtp:
                user, password_file = self._settings.smtp_user, self._settings.smtp_password_file
                if user is not None and password_file is not None:
                    smtp.login(user, _read(str(password_file)))
                smtp.send_message(message)
        except smtplib.SMTPResponseException as error:
            raise NotDelivered(f"mail server {host} answers {error.smtp_code}") from None
        except (smtplib.SMTPException, OSError, ValueError) as error:
            raise NotDelivered(f"mail server {host}: {type(error).__name__}") from None

    def _connected(self, scheme: str, host: str, port: int | None) -> smtplib.SMTP:
        if scheme == "smtps":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(host, port or 465, timeout=self._seconds, context=context)
        smtp = smtplib.SMTP(host, port or 587, timeout=self._seconds)
        if not is_loopback(host):
            smtp.starttls(context=ssl.create_default_context())
        return smtp


def delivery_key(notice: Notice, target: Target) -> str:
    """Return what identifies one notice on one channel, so that a receiver can tell a second delivery."""
    return hashlib.sha256(f"{notice.key}\0{target.id}".encode()).hexdigest()[:32]


def _slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _host(url: str) -> str:
    """Return the part of an address that is no secret."""
    return urlsplit(url).hostname or "the receiver"


async def _secret_url(path: str | None) -> str:
    url = await _secret(path or "")
    if not is_confidential(url):
        raise NotDelivered(f"{path} must contain an https:// address")
    return url


async def _secret(path: str) -> str:
    return await asyncio.to_thread(_read, path)


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode("ascii").strip()
    except OSError as error:
        raise NotDelivered(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NotDelivered(f"{path} is not text") from None
