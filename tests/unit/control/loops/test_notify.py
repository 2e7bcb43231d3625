"""Notices on a real ledger go to real receivers of HTTP and mail: once, or again until it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from fairway.control.channels import Message, NotDelivered, Sender
from fairway.control.loops import notify
from fairway.control.loops.notify import BATCH, MAX_ATTEMPTS, DeliverNotices
from fairway.control.metrics import NoticeMetrics
from fairway.ledger import FLEET, Lease, LeaseLost, Ledger
from fairway.ledger.notices import StoredNotice
from fairway.model.backoff import Backoff
from fairway.model.channel import Channels, Mail, Slack, Webhook
from fairway.model.fleet import Cluster, Fleet, VirtualConnection
from fairway.model.job import JobId, format_job_id
from fairway.model.names import ClusterName, TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind, NoticeRule, NoticeRules, SendWhen
from fairway.model.team import Team
from fairway.services.fleets import Fleets
from fairway.settings import Settings
from tests.unit.control.loops.receivers import Hooks, Mails, hooks, mails

SETTINGS = Settings(state_dir=Path("/nonexistent"), public_url="https://fairway.example.org")
RESEARCH, NLP = TeamName("research"), TeamName("nlp")
IDLE = Notice(
    NoticeKind.IDLE,
    "idle/17",
    "job 17 is <idle>",
    "It used 0 % & holds 8 GPUs.",
    NLP,
    UserName("alice"),
    JobId(17),
)


@pytest.fixture
def hook() -> Iterator[Hooks]:
    with hooks() as received:
        yield received


@pytest.fixture
async def mail() -> AsyncIterator[Mails]:
    async with mails() as received:
        yield received


@pytest.fixture
async def lease(ledger: Ledger) -> AsyncIterator[Lease]:
    taken = await ledger.leases.take("notify", FLEET, "test", 60)
    assert taken is not None
    yield taken


def fleet(team: Channels | None, operators: Channels | None = None) -> Fleet:
    teams = (Team(RESEARCH, notify=team), Team(NLP, RESEARCH))
    return Fleet(
        "acme", "USD", (Cluster(ClusterName("hpc"), VirtualConnection()),), (), teams, notify=operators
    )


async def loop(ledger: Ledger, current: Fleet, settings: Settings = SETTINGS) -> DeliverNotices:
    await ledger.revisions.add("fleet", "fleet", "test")
    fleets = Fleets(ledger, lambda _: current)
    metrics = NoticeMetrics(CollectorRegistry())
    return DeliverNotices(ledger, fleets, settings, metrics, backoff=Backoff(0, 0))


async def test_a_notice_goes_to_every_channel_once(
    ledger: Ledger, lease: Lease, hook: Hooks, mail: Mails, tmp_path: Path
) -> None:
    (tmp_path / "slack").write_text(f"{hook.url}/slack/secret\n")
    (tmp_path / "token").write_text("t0ken")
    (tmp_path / "password").write_text("pass")
    team = Channels(
        Webhook(f"{hook.url}/team", token_file=str(tmp_path / "token")), Slack(str(tmp_path / "slack"))
    )
    settings = replace(
        SETTINGS,
        smtp_url=mail.url,
        smtp_from="fairway@example.org",
        smtp_user="fairway",
        smtp_password_file=tmp_path / "password",
        mail_domain="example.org",
    )
    deliver = await loop(ledger, fleet(team, Channels(mail=Mail(("ops@a.org", "x@b.org")))), settings)
    async with ledger.writing(lease) as tx:
        await tx.notices.add([IDLE, Notice(NoticeKind.HEALTH, "n", "node down", "gpu001", operators=True)])
    for _ in range(3):
        await deliver(lease)
    await deliver.close()

    by_path = {path: (headers, body) for path, headers, body in hook.got}
    assert len(hook.got) == 2
    headers, body = by_path["/team"]
    assert headers["authorization"] == "Bearer t0ken"
    assert len(headers["idempotency-key"]) == 32
    job = format_job_id(17)
    assert body == {
        "version": 1,
        "kind": "idle",
        "key": "idle/17",
        "subject": "job 17 is <idle>",
        "text": "It used 0 % & holds 8 GPUs.",
        "team": "nlp",
        "user": "alice",
        "job": job,
        "job_url": f"https://fairway.example.org/jobs/{job}",
        "operators": False,
        "created_at": body["created_at"],
    }
    text = (
        f"*job 17 is &lt;idle&gt;*\nIt used 0 % &amp; holds 8 GPUs.\nhttps://fairway.example.org/jobs/{job}"
    )
    assert by_path["/slack/secret"][1] == {"text": text}

    (to_alice, alices), (to_operators, operators) = sorted(mail.got, key=lambda one: one[0])
    assert (to_alice, to_operators) == (["alice@example.org"], ["ops@a.org", "x@b.org"])
    assert alices["Subject"] == "Fairway: job 17 is <idle>"
    assert alices["From"] == "fairway@example.org"
    assert operators.get_content().strip() == "gpu001"
    assert len(mail.logins) == 2


async def test_what_fails_is_tried_again_and_what_succeeded_is_not(
    ledger: Ledger, lease: Lease, hook: Hooks, tmp_path: Path
) -> None:
    both = Channels(Webhook(f"{hook.url}/a"), Slack(str(tmp_path / "none")))
    deliver = await loop(ledger, fleet(both))
    await ledger.notices.add([IDLE])
    hook.answers = [503, 302]
    for _ in range(2):
        await deliver(lease)
    tried = {due.channel: due.attempts for due in await ledger.notices.due(10)}
    assert tried == {"research/webhook": 2, "research/slack": 2}
    (tmp_path / "none").write_text(f"{hook.url}/slack")  # somebody corrects it
    await deliver(lease)
    assert await ledger.notices.due(10) == []
    await deliver(lease)
    assert sorted(path for path, _, _ in hook.got) == ["/a", "/a", "/a", "/slack"]  # no redirect is followed
    keys = {headers["idempotency-key"] for path, headers, _ in hook.got if path == "/a"}
    assert len(keys) == 1
    await deliver.close()


async def test_a_channel_that_never_answers_well_is_given_up(
    ledger: Ledger, lease: Lease, hook: Hooks, database_url: str
) -> None:
    deliver = await loop(ledger, fleet(Channels(Webhook(f"{hook.url}/a"))))
    await ledger.notices.add([IDLE])
    hook.answers = [500] * 99
    for _ in range(MAX_ATTEMPTS + 3):
        await deliver(lease)
    assert len(hook.got) == MAX_ATTEMPTS
    with psycopg.connect(database_url) as db:
        row = db.execute("SELECT attempts, delivered_at, error FROM notice_delivery").fetchone()
    assert row == (MAX_ATTEMPTS, None, "127.0.0.1 answers 500")
    await deliver.close()


async def test_a_server_that_lost_its_lease_sends_nothing(ledger: Ledger, lease: Lease, hook: Hooks) -> None:
    deliver = await loop(ledger, fleet(Channels(Webhook(f"{hook.url}/a"))))
    await ledger.notices.add([IDLE])
    hook.answers = [503]
    await deliver(lease)
    await ledger.leases.release(lease)
    with pytest.raises(LeaseLost):
        await deliver(lease)
    assert len(hook.got) == 1
    await deliver.close()


async def test_a_server_that_loses_its_lease_while_it_sends_records_nothing_and_the_next_sends_again(
    ledger: Ledger, lease: Lease, hook: Hooks
) -> None:
    deliver = await loop(ledger, fleet(Channels(Webhook(f"{hook.url}/a"))))
    await ledger.notices.add([IDLE])
    hook.hold.clear()
    sending = asyncio.create_task(deliver(lease))
    while not hook.got:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await ledger.leases.release(lease)
    hook.hold.set()
    with pytest.raises(LeaseLost):
        await sending
    taken = await ledger.leases.take("notify", FLEET, "next", 60)
    assert taken is not None
    await deliver(taken)
    await deliver(taken)
    first, second = (headers["idempotency-key"] for _, headers, _ in hook.got)
    assert first == second  # the receiver can tell
    await deliver.close()


async def test_a_notice_without_a_channel_is_done(ledger: Ledger, lease: Lease) -> None:
    deliver = await loop(ledger, fleet(None))
    await ledger.notices.add([IDLE, replace(IDLE, key="gone", team=TeamName("gone"), operators=True)])
    await deliver(lease)
    pending = await ledger.notices.pending()
    assert not (pending.unrouted or pending.due)


async def test_a_digest_is_one_message_of_each_notice_once(
    ledger: Ledger, lease: Lease, hook: Hooks, mail: Mails, database_url: str
) -> None:
    rules = NoticeRules((NoticeRule(NoticeKind.BUDGET, SendWhen.DAILY),))
    team = Channels(Webhook(f"{hook.url}/a"), mail=Mail(("team@a.org",)), rules=rules)
    settings = replace(SETTINGS, smtp_url=mail.url, smtp_from="fairway@example.org")
    deliver = await loop(ledger, fleet(team), settings)
    spent = [replace(IDLE, kind=NoticeKind.BUDGET, key=f"b/{n}", subject=f"spent {n}") for n in range(3)]
    await ledger.notices.add([IDLE, *spent])
    await deliver(lease)
    assert [body["key"] for _, _, body in hook.got] == ["idle/17"]  # at once; the others are for the digest
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute("UPDATE notice_delivery SET due_at = now() WHERE due_at IS NOT NULL")
    hook.answers = [503]
    for _ in range(3):
        await deliver(lease)
    assert len(mail.got) == 2
    digest = mail.got[1][1]
    assert digest["Subject"] == "Fairway: 3 notices: 3 budget"
    assert all(f"spent {n}" in digest.get_content() for n in range(3))
    bodies = [body for _, _, body in hook.got[1:]]
    assert bodies[0] == bodies[1]  # tried again, the same in every byte
    assert len({headers["idempotency-key"] for _, headers, _ in hook.got[1:]}) == 1
    assert [one["key"] for one in bodies[1]["notices"]] == ["b/0", "b/1", "b/2"]
    await deliver.close()


async def test_a_long_digest_is_cut_for_slack_and_complete_elsewhere(hook: Hooks, tmp_path: Path) -> None:
    (tmp_path / "slack").write_text(f"{hook.url}/slack")
    notices = tuple(
        StoredNotice(n, replace(IDLE, key=f"k/{n}", text="<" * 7000), datetime.now(UTC)) for n in range(9)
    )
    sender = Sender(SETTINGS)
    for channel in (Slack(str(tmp_path / "slack")), Webhook(f"{hook.url}/all")):
        await sender.send(Message("a/b", notices), channel)
    await sender.close()
    (_, _, short), (_, _, whole) = hook.got
    assert set(short) == {"text"}  # what Slack, Mattermost and Rocket.Chat accept
    assert short["text"].startswith("*9 notices: 9 idle*\n")
    assert short["text"].endswith("…\nIt continues in:  fairway notices list")
    assert 12_000 < len(short["text"].replace("&lt;", "<")) < 12_100
    assert [len(one["text"]) for one in whole["notices"]] == [7000] * 9


async def test_a_channel_that_is_gone_is_given_up_at_once(
    ledger: Ledger, lease: Lease, hook: Hooks, database_url: str
) -> None:
    deliver = await loop(ledger, fleet(Channels(Webhook(f"{hook.url}/a"))))
    await ledger.notices.add([IDLE])
    hook.answers = [503]
    await deliver(lease)
    after = await loop(ledger, fleet(Channels(mail=Mail(("team@a.org",)))))
    await after(lease)
    assert not (await ledger.notices.pending()).due
    with psycopg.connect(database_url) as db:
        row = db.execute("SELECT delivered_at, error FROM notice_delivery").fetchone()
    assert row == (None, "the channel is no longer configured")
    await deliver.close()


async def test_many_notices_take_several_rounds(ledger: Ledger, lease: Lease, hook: Hooks) -> None:
    deliver = await loop(ledger, fleet(Channels(Webhook(f"{hook.url}/a"))))
    await ledger.notices.add([replace(IDLE, key=f"idle/{n}") for n in range(BATCH + 3)])
    await deliver(lease)
    assert len(hook.got) == BATCH
    await deliver(lease)
    assert len({body["key"] for _, _, body in hook.got}) == len(hook.got) == BATCH + 3
    await deliver.close()


async def test_old_notices_are_forgotten_now_and_then(
    ledger: Ledger, lease: Lease, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = await loop(ledger, fleet(None))
    with psycopg.connect(database_url, autocommit=True) as db:
        for wanted, every in ((0, 3600.0), (1, 3600.0), (0, 0.0)):
            monkeypatch.setattr(notify, "FORGET_SECONDS", every)
            await ledger.notices.add([IDLE])
            db.execute("UPDATE notice SET created_at = now() - interval '91 days'")
            await deliver(lease)
            assert db.execute("SELECT count(*) FROM notice").fetchone() == (wanted,)


async def refused(settings: Settings, channel: Webhook | Slack | Mail, seconds: float = 5) -> str:
    sender = Sender(settings, seconds=seconds)
    message = Message("a/b", (StoredNotice(1, IDLE, datetime.now(UTC)),))
    try:
        with pytest.raises(NotDelivered) as caught:
            await sender.send(message, channel)
    finally:
        await sender.close()
    return str(caught.value)


async def test_what_is_said_of_a_failure_has_no_secret(hook: Hooks, tmp_path: Path, mail: Mails) -> None:
    secret = tmp_path / "url"
    slack = Slack(str(secret))
    assert await refused(SETTINGS, slack) == f"cannot read {secret}: No such file or directory"
    secret.write_bytes(b"\xff\xfe")
    assert await refused(SETTINGS, slack) == f"{secret} is not text"
    for url in ("http://hooks.example.org/s3cret", "file:///etc/s3cret", "s3cret", "http://[s3cret"):
        secret.write_text(url)
        assert await refused(SETTINGS, slack) == f"{secret} must contain an https:// address"
    secret.write_text("http://127.0.0.1:1/s3cret")
    assert await refused(SETTINGS, slack) == "127.0.0.1 is not reachable: ConnectError"
    secret.write_text(f"{hook.url}/s3cret")
    hook.answers = [404]
    assert await refused(SETTINGS, slack) == "127.0.0.1 answers 404"
    hook.hold.clear()
    assert await refused(SETTINGS, slack, 0.2) == "no answer within 0.2 s"
    hook.hold.set()
    to = Mail(("a@example.org",))
    assert await refused(SETTINGS, to) == "the server has no mail server: set FAIRWAY_SMTP_URL"
    assert await refused(replace(SETTINGS, smtp_url="smtp://127.0.0.1:1"), to) == (
        "mail server 127.0.0.1: ConnectionRefusedError"
    )
    mail.refuse = True
    assert await refused(replace(SETTINGS, smtp_url=mail.url), to) == (
        "mail server 127.0.0.1: SMTPRecipientsRefused"
    )


async def test_mail_without_tls_goes_to_this_machine_only(
    mail: Mails, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mail server elsewhere must offer STARTTLS: this one does not."""
    monkeypatch.setattr("fairway.control.channels.is_loopback", lambda host: False)
    said = await refused(replace(SETTINGS, smtp_url=mail.url), Mail(("a@example.org",)))
    assert said == "mail server 127.0.0.1: SMTPNotSupportedError"
    assert mail.got == []
