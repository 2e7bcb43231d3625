"""Mail goes to a real mail server: over TLS that is verified, with a password, and accepted once."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fairway.control.channels import Message, NotDelivered, Sender
from fairway.ledger.notices import StoredNotice
from fairway.model.channel import Mail
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.settings import Settings

MESSAGE = Message(
    "research/mail", (StoredNotice(1, Notice(NoticeKind.BUDGET, "b/1", "spent", "text"), datetime.now(UTC)),)
)


@dataclass
class MailServer:
    """What a mail server accepted, and how it behaves."""

    url: str = ""
    got: list[tuple[list[str], bytes]] = field(default_factory=list)
    logins: list[tuple[bytes, bytes]] = field(default_factory=list)
    after_data: str = "250 accepted"
    drop_after_data: bool = False
    refuse: str | None = None

    def authenticate(self, *args: Any) -> AuthResult:
        auth = args[-1]
        self.logins.append((auth.login, auth.password))
        return AuthResult(success=auth.password == b"s3cret", handled=False)

    async def handle_RCPT(  # noqa: N802 - its name in aiosmtpd
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        if address == self.refuse:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 ok"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        self.got.append((list(envelope.rcpt_tos), envelope.content))
        return self.after_data

    async def handle_QUIT(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        if self.drop_after_data:
            server.transport.abort()
        return "221 bye"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that no authority signed, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("mail") / "mail.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@asynccontextmanager
async def serving(certificate: Path | None = None, *, starttls: bool = False) -> AsyncIterator[MailServer]:
    server, loop = MailServer(), asyncio.get_running_loop()
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)

    def session() -> SMTP:
        return SMTP(
            server,
            loop=loop,
            authenticator=server.authenticate,
            tls_context=context if starttls else None,
            require_starttls=starttls,
            auth_require_tls=starttls,
        )

    listening = await loop.create_server(session, "127.0.0.1", 0, ssl=None if starttls else context)
    async with listening:
        scheme = "smtps" if context is not None and not starttls else "smtp"
        server.url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield server


async def send(server: MailServer, *to: str, password: Path | None = None, seconds: float = 10) -> str | None:
    """Send the message. Returns why it was not delivered."""
    settings = Settings(
        state_dir=Path("/nonexistent"),
        smtp_url=server.url,
        smtp_from="fairway@example.org",
        smtp_user=None if password is None else "fairway",
        smtp_password_file=password,
    )
    sender = Sender(settings, seconds=seconds)
    try:
        await sender.send(MESSAGE, Mail(to or ("a@example.org",)))
    except NotDelivered as error:
        return str(error)
    finally:
        await sender.close()
    return None


@pytest.mark.parametrize("starttls", [False, True])
async def test_mail_goes_over_verified_tls_with_a_password(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starttls: bool
) -> None:
    monkeypatch.setattr("fairway.control.channels.is_loopback", lambda host: False)
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    async with serving(certificate, starttls=starttls) as server:
        refused = await send(server, password=password)
        assert refused == "mail server 127.0.0.1: SSLCertVerificationError"
        assert (server.logins, server.got) == ([], [])  # the password is not sent either
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await send(server, password=password) is None
        assert server.logins == [(b"fairway", b"s3cret")]
        password.write_text("wrong")
        refused = await send(server, password=password)
        assert refused == "mail server 127.0.0.1 answers 535"
        assert len(server.got) == 1
        assert f"Message-ID: <{MESSAGE.key}@fairway>".encode() in server.got[0][1]


async def test_a_mail_that_was_accepted_counts_as_sent_however_the_session_ends() -> None:
    async with serving() as server:
        server.drop_after_data = True
        assert await send(server) is None
        server.drop_after_data, server.after_data = False, "451 try later"
        assert await send(server) == "mail server 127.0.0.1 answers 451"


async def test_one_refused_recipient_does_not_send_the_mail_to_the_others_again() -> None:
    async with serving() as server:
        server.refuse = "gone@example.org"
        assert await send(server, "a@example.org", "gone@example.org") is None
        assert [to for to, _ in server.got] == [["a@example.org"]]
        refused = await send(server, "gone@example.org")
        assert refused == "mail server 127.0.0.1: SMTPRecipientsRefused"


async def test_a_mail_server_that_answers_a_byte_at_a_time_is_given_up_with_its_thread() -> None:
    closed = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 slow\r\n")
        try:
            while True:
                writer.write(b"250-x\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)
        except OSError:
            closed.set()

    listening = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with listening:
        server = MailServer(f"smtp://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        began = time.monotonic()
        assert await send(server, seconds=0.5) == "no answer within 0.5 s"
        assert time.monotonic() - began < 5
        await asyncio.wait_for(closed.wait(), 5)  # the thread does not read on
