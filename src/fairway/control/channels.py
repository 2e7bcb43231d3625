"""Send a message by a channel: webhook, Slack or mail. Each attempt has a time limit, and follows nothing.

Addresses come from an admin's fleet file, or from a file that it names. What a receiver answers is not shown:
only its status is.
"""

from __future__ import annotations

import asyncio
import hashlib
import smtplib
import socket
import ssl
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import httpx2
import msgspec
import structlog

from fairway.ledger.notices import StoredNotice
from fairway.model.channel import Mail, Slack, Webhook
from fairway.model.hosts import is_loopback
from fairway.model.job import format_job_id
from fairway.model.notice import Notice
from fairway.services.outgoing import is_confidential
from fairway.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

SEND_SECONDS: Final = 10.0
MAX_SLACK_TEXT: Final = 12_000
"""Slack cuts messages at 40,000 characters, and Mattermost refuses or splits them at 16,383."""
_MAX_FILE_BYTES: Final = 64 * 1024


class NotDelivered(Exception):
    """An attempt failed; the text says why, and contains no secret."""


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent at once by one channel: one notice, or a digest of several."""

    channel: str
    """The name of the channel, as `policy.notice_routing` gives it."""
    notices: tuple[StoredNotice, ...]
    attachments: Mapping[str, str] = field(default_factory=dict)
    """HTML documents by the names of their files. They are sent by mail only."""

    @property
    def key(self) -> str:
        """Return what is the same at every attempt, so that a receiver can detect a duplicate."""
        first = self.notices[0].notice.key
        what = first if len(self.notices) == 1 else f"digest\0{first}"
        return hashlib.sha256(f"{what}\0{self.channel}".encode()).hexdigest()[:32]

    @property
    def subject(self) -> str:
        if len(self.notices) == 1:
            return self.notices[0].notice.subject
        kinds = Counter(one.notice.kind.value for one in self.notices)
        return f"{len(self.notices)} notices: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}"

    @property
    def created_at(self) -> datetime:
        return self.notices[-1].created_at


class Sender:
    """Sends messages by HTTP and by mail."""

    def __init__(self, settings: Settings, *, seconds: float = SEND_SECONDS) -> None:
        self._settings = settings
        self._seconds = seconds
        self._http = httpx2.AsyncClient(timeout=seconds, trust_env=False, follow_redirects=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, message: Message, channel: Webhook | Slack | Mail) -> None:
        """Send a message. Raises NotDelivered."""
        try:
            async with asyncio.timeout(self._seconds):
                match channel:
                    case Webhook(url, url_file, token_file):
                        headers = {"Idempotency-Key": message.key}
                        if token_file is not None:
                            headers["Authorization"] = f"Bearer {await _secret(token_file)}"
                        address = url if url is not None else await _secret_url(url_file)
                        await self._post(address, self._as_json(message), headers)
                    case Slack(url_file):
                        body = self._body(message)
                        if len(body) > MAX_SLACK_TEXT:
                            body = f"{body[:MAX_SLACK_TEXT]} …\nIt continues in:  fairway notices list"
                        text = f"*{_slack(message.subject)}*\n{_slack(body)}"
                        await self._post(await _secret_url(url_file), {"text": text}, {})
                    case Mail(to):
                        await self._send_mail(self._mail(message, to))
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

    def _as_json(self, message: Message) -> dict[str, object]:
        if len(message.notices) == 1:
            return {"version": 1, **self._notice_json(message.notices[0])}
        return {
            "version": 1,
            "kind": "digest",
            "key": message.key,
            "subject": message.subject,
            "notices": [self._notice_json(one) for one in message.notices],
        }

    def _notice_json(self, stored: StoredNotice) -> dict[str, object]:
        notice = stored.notice
        return {
            "kind": notice.kind,
            "key": notice.key,
            "subject": notice.subject,
            "text": notice.text,
            "team": notice.team,
            "user": notice.user,
            "job": None if notice.job is None else format_job_id(notice.job),
            "job_url": self._job_url(notice),
            "operators": notice.operators,
            "created_at": stored.created_at.isoformat(),
        }

    def _job_url(self, notice: Notice) -> str | None:
        base = self._settings.public_url
        return None if base is None or notice.job is None else f"{base}/jobs/{format_job_id(notice.job)}"

    def _body(self, message: Message) -> str:
        if len(message.notices) == 1:
            return self._text(message.notices[0].notice)
        return "\n\n".join(
            f"{one.created_at:%Y-%m-%d %H:%M} UTC  {one.notice.subject}\n{self._text(one.notice)}"
            for one in message.notices
        )

    def _text(self, notice: Notice) -> str:
        link = self._job_url(notice)
        return notice.text if link is None else f"{notice.text}\n{link}"

    def _mail(self, message: Message, to: tuple[str, ...]) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = f"Fairway: {message.subject}"
        mail["From"] = self._settings.smtp_from
        mail["To"] = ", ".join(to)
        mail["Date"] = format_datetime(message.created_at)
        mail["Message-ID"] = f"<{message.key}@fairway>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(self._body(message))
        for name, html in message.attachments.items():
            mail.add_attachment(html, subtype="html", filename=name)
        return mail

    async def _send_mail(self, mail: EmailMessage) -> None:
        """Send a mail in a thread. At the time limit its connection is shut down, which ends the thread."""
        url = self._settings.smtp_url
        if url is None:
            raise NotDelivered("the server has no mail server: set FAIRWAY_SMTP_URL")
        opened: list[smtplib.SMTP] = []
        try:
            await asyncio.to_thread(self._submit, urlsplit(url), mail, opened)
        finally:
            for smtp in opened:
                if smtp.sock is not None:
                    with suppress(OSError):
                        smtp.sock.shutdown(socket.SHUT_RDWR)

    def _submit(self, url: SplitResult, mail: EmailMessage, opened: list[smtplib.SMTP]) -> None:
        host = url.hostname or ""
        try:
            smtp = self._connected(url.scheme, host, url.port)
            opened.append(smtp)
            try:
                if url.scheme != "smtps" and not is_loopback(host):
                    smtp.starttls(context=ssl.create_default_context())
                user, password_file = self._settings.smtp_user, self._settings.smtp_password_file
                if user is not None and password_file is not None:
                    smtp.login(user, _read(str(password_file)))
                refused = smtp.send_message(mail)
                with suppress(smtplib.SMTPException, OSError):
                    smtp.quit()  # the mail is accepted already, however this ends
            finally:
                smtp.close()
        except smtplib.SMTPResponseException as error:
            raise NotDelivered(f"mail server {host} answers {error.smtp_code}") from None
        except (smtplib.SMTPException, OSError, ValueError) as error:
            raise NotDelivered(f"mail server {host}: {type(error).__name__}") from None
        for address, (code, _) in refused.items():
            # The other recipients have it: to send it again would give it to them twice.
            log.warning("mail server refuses a recipient", address=address, status=code)

    def _connected(self, scheme: str, host: str, port: int | None) -> smtplib.SMTP:
        if scheme == "smtps":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(host, port or 465, timeout=self._seconds, context=context)
        return smtplib.SMTP(host, port or 587, timeout=self._seconds)


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
