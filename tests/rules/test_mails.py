"""Mails to people: the outbox, the conversation with the server, and mails that cannot be delivered."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from heliograph import doctor
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.network import smtp
from heliograph.base.network.smtp import Mail, Mailer, MailNotSent
from heliograph.base.process.settings import Settings, SettingsError
from heliograph.cli.running.mail import app as mail_app
from heliograph.mail import outbox
from heliograph.mail.work import MailWork
from heliograph.people import invitations, links, memberships, users
from heliograph.people.mailing import forgotten, texts, trial
from heliograph.people.operators import accounts, noticing
from heliograph.sms.reports import daily
from tests.certificates import Authority
from tests.mailbox import Mailbox, listening
from tests.rules.factories import organization

FROM = "Acme <no-reply@example.com>"
LETTER = Mail("ana@example.com", "Olá\nBcc: eve@example.com", "Um texto.\n.\nFim — com acentos.\n")


def settings(port: int, **changed: str) -> Settings:
    values = {
        "secret_key": "a secret key for tests, long enough",
        "smtp_url": f"smtp://127.0.0.1:{port}",
        "mail_from": FROM,
        "public_url": "https://sms.example.com",
    }
    return Settings(**(values | changed))  # type: ignore[arg-type]


def sender(url: str) -> Mailer:
    return Mailer(smtp.parse(url), smtp.parse_sender(FROM))


@pytest.fixture
async def mailbox() -> AsyncIterator[Mailbox]:
    async with listening(Mailbox()) as found:
        yield found


@pytest.fixture
async def acme(pool: Pool) -> Actor:
    return await organization(pool)


class Post:
    """A worker's mail loop, and its settings."""

    def __init__(self, pool: Pool, configured: Settings) -> None:
        self.box = outbox.of(configured)
        self.work = MailWork(pool, configured, {forgotten.ASKED: forgotten.answer})
        self._pool = pool

    async def round(self) -> None:
        """Until nothing is due."""
        while await self.work.round():
            pass

    async def states(self) -> list[tuple[str, str, str, bool]]:
        rows = await self._pool.fetch("SELECT kind, state, reason, sealed IS NULL FROM mails ORDER BY created_at, id")
        return [tuple(row) for row in rows]

    async def hasten(self) -> None:
        await self._pool.execute("UPDATE mails SET due_at = now() WHERE state = 'waiting'")


@pytest.fixture
async def post(pool: Pool, mailbox: Mailbox) -> AsyncIterator[Post]:
    made = Post(pool, settings(mailbox.port))
    yield made
    await made.work.close()


async def test_a_letter_arrives_as_it_was_written(mailbox: Mailbox) -> None:
    said = await sender(f"smtp://127.0.0.1:{mailbox.port}").send(LETTER, id="one")
    (mail,) = mailbox.mails
    assert (said, mailbox.recipients) == ("250 2.0.0 taken", ["ana@example.com"])
    assert (mail["to"], mail["from"], mail["message-id"]) == ("ana@example.com", FROM, "<one@example.com>")
    assert (mail["subject"], mail["bcc"]) == ("Olá Bcc: eve@example.com", None)
    assert mail["auto-submitted"] == "auto-generated"
    assert mail.get_content() == LETTER.text


@pytest.mark.parametrize(
    ("command", "answer", "reason", "is_final"),
    [
        ("RCPT", "550 5.1.1 no such person", "refused", True),
        ("RCPT", "451 4.7.1 greylisted", "busy", False),
        ("MAIL", "553 not yours", "sender", False),
        ("DATA", "554 5.7.1 not for strangers", "refused", True),
        ("DATA", "451 4.3.0 try later", "busy", False),
        (".", "554 spam", "refused", True),
        ("EHLO", "421 closing", "busy", False),
    ],
)
async def test_what_a_server_refuses(mailbox: Mailbox, command: str, answer: str, reason: str, is_final: bool) -> None:
    mailbox.answers[command] = answer
    if command == "EHLO":
        mailbox.answers["HELO"] = answer
    with pytest.raises(MailNotSent) as refused:
        await sender(f"smtp://127.0.0.1:{mailbox.port}").send(LETTER, id="one")
    assert (refused.value.reason, refused.value.is_final) == (reason, is_final)
    assert refused.value.said.startswith(answer[:3])


@pytest.mark.parametrize(
    "subject",
    [
        # An organization may have such a name, and so may whoever writes to its members.
        "Invitation to =?utf-8?q?Operator?=",
        "Invitation to =?utf-8?q?=F0?= and é",
        "=?utf-8?q?a=0D=0ABcc:_eve=40example.com?=",
        # Two words of which each takes more than a line.
        f"<b> A {'é' * 90} “Promoção ?= _ a\\b مرحبا",
        f'Padaria São João: {"🎉" * 200} {"x" * 200} "a", <b>; (c)',
        "العربية \u202babc\u202c",
        "x" * 200,
    ],
)
async def test_a_subject_arrives_whatever_is_in_it(mailbox: Mailbox, subject: str) -> None:
    """A name that looks encoded was decoded, and if it was no UTF-8 its mail was tried until its deadline; of two long
    words, the space between them was lost."""
    await sender(f"smtp://127.0.0.1:{mailbox.port}").send(Mail("ana@example.com", subject, "A text.\n"), id="one")
    (mail,) = mailbox.mails
    assert (mail["subject"], mail["bcc"]) == (subject, None)
    assert max(len(line) for line in mail.as_bytes().splitlines()) < 998


@pytest.mark.parametrize(
    ("answers", "password", "reason"),
    [
        ({"AUTH": "454 4.7.0 temporary authentication failure"}, "geheim", "busy"),
        ({"AUTH": "535 5.7.8 no"}, "geheim", "credentials"),
        ({"EHLO": "250-mailbox\r\n250 AUTH GSSAPI NTLM"}, "geheim", "credentials"),
        ({"EHLO": "250 mailbox"}, "geheim", "credentials"),
        ({}, "gehäim", "credentials"),
    ],
)
async def test_why_a_login_fails_is_told(answers: dict[str, str], password: str, reason: str) -> None:
    """A server without a method that can be used, and a password that cannot be sent, were a server that cannot be
    reached; one that could not check a password at the moment had refused it."""
    async with listening(Mailbox(passwords={"ana": "geheim"})) as box:
        box.answers |= answers
        with pytest.raises(MailNotSent) as refused:
            await sender(f"smtp://ana:{password}@127.0.0.1:{box.port}").send(LETTER, id="one")
    assert (refused.value.reason, refused.value.is_final) == (reason, False)
    assert "geh" not in refused.value.said


@pytest.mark.parametrize(
    ("to", "sent"),
    [
        ("ana@café.example", "ana@xn--caf-dma.example"),
        ("ana@cafe\u0301.example", "ana@xn--caf-dma.example"),
        ("ana@xn--caf-dma.example", "ana@xn--caf-dma.example"),
        ("Ana@Example.COM", "Ana@Example.COM"),
    ],
)
async def test_a_domain_may_have_other_letters(mailbox: Mailbox, to: str, sent: str) -> None:
    await sender(f"smtp://127.0.0.1:{mailbox.port}").send(Mail(to, "x", "x\n"), id="one")
    assert mailbox.recipients == [sent]


async def test_a_farewell_that_is_not_answered_is_no_reason_to_send_it_again(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox.answers["QUIT"] = ""

    async def over(running: asyncio.Future[str], seconds: float) -> str:
        """As if the time were over during the farewell."""
        async with asyncio.timeout(60):
            while ("quit", False) not in mailbox.commands:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        raise TimeoutError

    limited = SimpleNamespace(get_running_loop=asyncio.get_running_loop, wait_for=over)
    monkeypatch.setattr(smtp, "asyncio", limited)
    assert await sender(f"smtp://127.0.0.1:{mailbox.port}").send(LETTER, id="one") == "250 2.0.0 taken"
    assert len(mailbox.mails) == 1


async def test_a_server_that_falls_silent_or_is_away(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox.answers["DATA"] = ""
    with monkeypatch.context() as hurried:
        hurried.setattr(smtp, "DEADLINE", 0.3)
        with pytest.raises(MailNotSent, match="slow"):
            await sender(f"smtp://127.0.0.1:{mailbox.port}").send(LETTER, id="one")
    with pytest.raises(MailNotSent, match="unreachable"):
        await sender("smtp://127.0.0.1:1").send(LETTER, id="one")


async def test_a_server_that_cannot_be_reached_keeps_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its addresses was tried for its full time all the same: the next mails waited, and so did a worker that
    was to stop."""
    monkeypatch.setattr(smtp, "PATIENCE", 1_000.0)
    monkeypatch.setattr(smtp, "DEADLINE", 0.1)
    with contextlib.ExitStack() as stack:
        # Whoever comes when its queue is full is not answered.
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        made = sender(f"smtp://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(MailNotSent, match="slow"):
            await made.send(LETTER, id="one")
        await asyncio.wait_for(asyncio.to_thread(made._threads.shutdown), 60)


async def test_an_address_that_the_kernel_has_no_sockets_for_is_passed_over(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of IPv6 where it is turned off: the server's other addresses were not tried."""
    found = [(family, socket.SOCK_STREAM, 0, "", ("127.0.0.1", mailbox.port)) for family in (9_999, socket.AF_INET)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: found)
    await sender("smtp://localhost:25").send(LETTER, id="one")
    assert len(mailbox.mails) == 1


@pytest.mark.parametrize("url", ["smtps://127.0.0.1:{}", "smtp://127.0.0.1:{}?starttls=yes"])
async def test_a_server_that_falls_silent_as_tls_begins_keeps_no_thread(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was waited for all the same: whoever gave it up had no socket to close."""
    monkeypatch.setattr(smtp, "PATIENCE", 1_000.0)
    greeted = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if url.startswith("smtp:"):
            for answer in (b"220 mailbox", b"250-mailbox\r\n250 STARTTLS"):
                writer.write(answer + b"\r\n")
                await reader.readline()
            writer.write(b"220 go on\r\n")
        await reader.readexactly(1)
        greeted.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        made = sender(url.format(server.sockets[0].getsockname()[1]))
        sending = asyncio.create_task(made.send(LETTER, id="one"))
        await asyncio.wait_for(greeted.wait(), 60)
        sending.cancel()
        await asyncio.wait_for(asyncio.to_thread(made._threads.shutdown), 60)


@pytest.mark.parametrize(
    "to",
    [
        *("a,b@example.com", '"a b"@example.com', "a>b@example.com", "josé@example.com", "a@.."),
        *("ana@straße.example", "ana@ｅxample.com", "ana@οδος\u200d.example", "ana@λόγος.example"),
    ],
)
async def test_addresses_that_would_be_others(mailbox: Mailbox, to: str) -> None:
    with pytest.raises(MailNotSent, match="address"):
        await sender(f"smtp://127.0.0.1:{mailbox.port}").send(Mail(to, "x", "x"), id="one")
    assert mailbox.commands == []


async def test_a_password_goes_out_encrypted_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.issue("127.0.0.1"))
    async with listening(Mailbox(tls=tls, passwords={"ana": "p@ss/word"})) as box:
        url = f"smtp://ana:p%40ss%2Fword@127.0.0.1:{box.port}?starttls=yes"
        with pytest.raises(MailNotSent, match="tls"):  # a certificate of an unknown authority
            await sender(url).send(LETTER, id="one")
        monkeypatch.setenv("SSL_CERT_FILE", authority.file)
        with pytest.raises(MailNotSent, match="credentials") as refused:
            await sender(url.replace("word@", "wrong@")).send(LETTER, id="one")
        assert "ana" not in refused.value.said
        await sender(url).send(LETTER, id="one")
        assert len(box.mails) == 1
        assert all(is_secure for line, is_secure in box.commands if line.split()[0] in ("AUTH", "MAIL", "DATA"))
        box.answers["STARTTLS"] = "454 not now"
        box.commands.clear()
        with pytest.raises(MailNotSent, match="tls"):
            await sender(url).send(LETTER, id="one")
        assert [line.split()[0] for line, _ in box.commands] == ["ehlo", "STARTTLS"]


async def test_tls_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a certificate that is not accepted, one is told why."""
    authority, box = Authority(tmp_path), Mailbox()
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    tried = (
        ("other.example", 1, "is not valid for '127.0.0.1'"),
        ("127.0.0.1", -1, "has expired"),
        ("127.0.0.1", 1, ""),
    )
    for name, days, wrong in tried:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(authority.issue(name, days=days))
        async with await asyncio.start_server(box.serve, "127.0.0.1", 0, ssl=tls) as server:
            url = f"smtps://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            if wrong:
                with pytest.raises(MailNotSent, match="tls") as refused:
                    await sender(url).send(LETTER, id="one")
                assert wrong in refused.value.said
            else:
                await sender(url).send(LETTER, id="one")
            await box.hang_up()
    assert len(box.mails) == 1


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("mail.example.com:587", "look like"),
        ("https://ana:geheim@mail.example.com", "look like"),
        ("smtp://ana:geheim@mail.example.com?starttls=no", "unencrypted"),
        ("smtps://ana:geheim@mail.example.com?starttls=yes", "smtps"),
        ("smtp://geheim@mail.example.com", "belong together"),
        ("smtp://ana:ge/heim@mail.example.com", "%2F|look like"),
        ("smtp://mail.example.com?verify=no", "only option"),
    ],
)
def test_urls_that_are_refused(url: str, word: str) -> None:
    with pytest.raises(SettingsError, match=word) as refused:
        settings(1, smtp_url=url)
    assert "heim" not in str(refused.value)


def test_what_else_mails_need() -> None:
    assert smtp.parse("smtps://a:b@mail.example.com").port == 465
    assert smtp.parse("smtp://mail.example.com").starttls
    assert "geheim" not in repr(smtp.parse("smtp://ana:geheim@mail.example.com"))
    for name in ("mail_from", "public_url"):
        with pytest.raises(SettingsError, match=f"HELIOGRAPH_{name.upper()}"):
            settings(1, **{name: ""})
    assert outbox.of(Settings(secret_key="a secret key for tests, long enough")) is None


async def test_an_invitation_is_mailed_and_erased(pool: Pool, acme: Actor, post: Post, mailbox: Mailbox) -> None:
    async with pool.acquire() as conn:
        await users.ensure(conn, acme, email="rui@example.com")
        await conn.execute("UPDATE users SET language = 'pt'")
        id, token, is_mailed = await invitations.invite(
            conn, acme, email="rui@example.com", role="viewer", note="Welcome\nto us", box=post.box
        )
        (waiting,) = await conn.fetch("SELECT subject_id, sealed FROM mails")
        assert (is_mailed, waiting["subject_id"]) == (True, id)
        assert b"rui@example.com" not in waiting["sealed"]
        assert (await invitations.list_all(conn, acme))[0].mail == "waiting"
    await post.round()
    (mail,) = mailbox.mails
    assert mail["subject"].startswith("Convite para ")
    assert f"https://sms.example.com/invitation#{token}\n" in mail.get_content()
    assert "> Welcome\n> to us\n" in mail.get_content()
    assert await post.states() == [("invitation", "sent", "", True)]
    async with pool.acquire() as conn:
        assert (await invitations.list_all(conn, acme))[0].mail == "sent"


async def test_an_invitation_that_is_rolled_back_is_not_mailed(pool: Pool, acme: Actor, post: Post) -> None:
    async with pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await invitations.invite(conn, acme, email="rui@example.com", role="viewer", box=post.box)
        await transaction.rollback()
    assert await post.states() == []


async def test_what_is_withdrawn_or_renewed_is_not_mailed(
    pool: Pool, acme: Actor, post: Post, mailbox: Mailbox
) -> None:
    async with pool.acquire() as conn:
        id, _, _ = await invitations.invite(conn, acme, email="rui@example.com", role="viewer", box=post.box)
        _, token, _ = await invitations.renew(conn, acme, id=id, box=post.box)
        other, _, _ = await invitations.invite(conn, acme, email="eva@example.com", role="viewer", box=post.box)
        await invitations.withdraw(conn, acme, id=other)
        # It ends together with the invitation's creator.
        ana, _ = await users.ensure(conn, acme, email="ana@example.com")
        await memberships.add(conn, acme, user_id=ana.id, role="owner")
        hers = msgspec.structs.replace(acme, by=Principal("person", ana.id))
        await invitations.invite(conn, hers, email="ivo@example.com", role="viewer", box=post.box)
        await users.remove(conn, Principal("cli"), id=ana.id)
    await post.round()
    assert [token in mail.get_content() for mail in mailbox.mails] == [True]


async def test_a_mail_is_tried_again_and_given_up(pool: Pool, acme: Actor, post: Post, mailbox: Mailbox) -> None:
    async with pool.acquire() as conn:
        await invitations.invite(conn, acme, email="rui@example.com", role="viewer", box=post.box)
    mailbox.answers["RCPT"] = "451 rui@example.com is greylisted"
    with capture_logs() as logged:
        await post.round()
        assert await post.states() == [("invitation", "waiting", "busy", False)]
        assert await pool.fetchval("SELECT due_at BETWEEN now() AND now() + interval '10 s' FROM mails")
        await pool.execute("UPDATE mails SET deadline = now()")
        await post.round()
    assert await post.states() == [("invitation", "failed", "busy", True)]
    assert [(one["event"], one["log_level"]) for one in logged] == [
        ("mail not sent, trying again", "warning"),
        ("mail given up", "error"),
    ]
    assert "rui" not in str(logged)
    assert mailbox.mails == []


async def test_a_refusal_is_final_and_a_mail_goes_out_after_all(
    pool: Pool, acme: Actor, post: Post, mailbox: Mailbox
) -> None:
    async with pool.acquire() as conn:
        await invitations.invite(conn, acme, email="rui@example.com", role="viewer", box=post.box)
    mailbox.answers["MAIL"] = "450 later"
    await post.round()
    del mailbox.answers["MAIL"]
    await post.hasten()
    await post.round()
    async with pool.acquire() as conn:
        await invitations.invite(conn, acme, email="eva@example.com", role="viewer", box=post.box)
    mailbox.answers["RCPT"] = "550 unknown"
    await post.round()
    assert await post.states() == [("invitation", "sent", "", True), ("invitation", "failed", "refused", True)]


async def test_without_a_server_late_mails_are_given_up(pool: Pool, acme: Actor, post: Post) -> None:
    async with pool.acquire() as conn:
        await invitations.invite(conn, acme, email="rui@example.com", role="viewer", box=post.box)
    without = MailWork(pool, settings(1, smtp_url=""), {})
    await without.round()
    assert await post.states() == [("invitation", "waiting", "", False)]
    await pool.execute("UPDATE mails SET deadline = now()")
    await without.round()
    assert await post.states() == [("invitation", "failed", "late", True)]


async def test_the_outbox_is_bounded(pool: Pool, acme: Actor, post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    async def mailed(email: str) -> bool:
        async with pool.acquire() as conn:
            return (await invitations.invite(conn, acme, email=email, role="viewer", box=post.box))[2]

    monkeypatch.setattr(outbox, "MOST_A_DAY", 2)
    assert [await mailed(f"{one}@example.com") for one in "aab"] == [True, True, False]
    monkeypatch.setattr(outbox, "MOST_A_DAY", 200)
    monkeypatch.setattr(outbox, "MOST_WAITING", 1)
    assert not await mailed("c@example.com")


async def test_notices_that_wait_keep_nobody_from_a_password_and_operators_from_an_alert(
    pool: Pool, acme: Actor, post: Post, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that deferred five organizations' notices used to fill the outbox for twelve hours."""
    monkeypatch.setattr(outbox, "MOST_WAITING", 3)
    box, within = post.box, timedelta(hours=1)
    assert box is not None
    async with pool.acquire() as conn:
        await users.ensure(conn, acme, email="ana@example.com", name="Ana")
        notices = [
            (acme.organization_id, uuid7(), msgspec.structs.replace(LETTER, to=f"{n}@example.com")) for n in range(4)
        ]
        assert await outbox.put_many(conn, box, notices, kind="notices", within=within) == 3
        assert await outbox.put_many(conn, box, notices, kind="notices", within=within) == 0
        alert = [(None, uuid7(), msgspec.structs.replace(LETTER, to="operator@example.com"))]
        assert await outbox.put_many(conn, box, alert, kind="notices", within=within) == 1
    await forgotten.ask(pool, box, email="ana@example.com", language="en", address="192.0.2.1")
    monkeypatch.setattr(outbox, "TAKEN", 2)
    async with pool.acquire() as conn:
        first = await outbox.take(conn)
    assert {one.kind for one in first} == {"notices", "forgotten"}
    owners = await pool.fetch("SELECT organization_id FROM mails WHERE id = ANY ($1)", [one.id for one in first])
    assert {row["organization_id"] for row in owners} == {None}


async def test_a_forgotten_password(pool: Pool, acme: Actor, post: Post, mailbox: Mailbox) -> None:
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, acme, email="ana@example.com", name="Ana")
    assert post.box is not None
    for email in ("nobody@example.com", " ANA@example.com", "ana@example.com"):
        await forgotten.ask(pool, post.box, email=email, language="en", address="192.0.2.1")
    # Whether the address is known or not, the pages are alike.
    rows = await pool.fetch("SELECT kind, subject_id, state, deadline - created_at AS within FROM mails")
    assert len({tuple(row) for row in rows}) == 1
    await post.round()
    (mail,) = mailbox.mails  # the second request came too soon
    assert (mail["to"], await post.states()) == ("ana@example.com", [("link", "sent", "", True)])
    found = re.search(r"https://sms\.example\.com/enter#(\S+)", mail.get_content())
    assert found
    left = await pool.fetchval("SELECT expires_at - now() FROM sign_in_links")
    assert 29 * 60 < left.total_seconds() <= 30 * 60
    async with pool.acquire() as conn:
        used = await links.use(conn, token=found[1])
        assert (used.user_id, used.is_mailed, used.needs_code) == (user.id, True, False)
        with pytest.raises(links.LinkUsed):
            await links.use(conn, token=found[1])
        assert await conn.fetchval("SELECT who FROM audit_log WHERE action = 'user.link_made'") == "system"


async def test_what_was_mailed_before_the_clock_was_set_back_keeps_nobody_from_a_mail(
    pool: Pool, acme: Actor, post: Post, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No link was mailed for as long as the clock had been ahead, though the page said so, and no invitation or notice
    for a day longer if the organization had sent many."""
    monkeypatch.setattr(outbox, "MOST_A_DAY", 1)
    box = post.box
    assert box is not None
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, acme, email="ana@example.com", name="Ana")

    async def queued() -> tuple[bool, int]:
        hour, organization = timedelta(hours=1), acme.organization_id
        async with pool.acquire() as conn:
            return (
                await outbox.put(
                    conn, box, kind="invitation", content=LETTER, within=hour, organization_id=organization
                ),
                await outbox.put_many(conn, box, [(organization, user.id, LETTER)], kind="notices", within=hour),
            )

    for _ in range(2):
        await forgotten.ask(pool, box, email="ana@example.com", language="en", address="192.0.2.1")
        await post.round()
        assert [await queued(), await queued()] == [(True, 1), (False, 0)]
        assert await forgotten.is_recent(pool, user_id=user.id)
        await pool.execute("UPDATE mails SET created_at = now() + interval '3 days'")
        assert not await forgotten.is_recent(pool, user_id=user.id)
    assert await pool.fetchval("SELECT count(*) FROM mails WHERE kind = 'link' AND state = 'sent'") == 2


async def test_after_the_clock_was_set_back_the_last_mail_is_the_one_sent_since(
    pool: Pool, acme: Actor, post: Post, mailbox: Mailbox
) -> None:
    """What became of an invitation that was renewed, and of another test mail, was not shown."""
    box, eva = post.box, uuid7()
    assert box is not None
    async with pool.acquire() as conn:
        id, _, _ = await invitations.invite(conn, acme, email="rui@example.com", role="viewer", box=box)
        await trial.put(conn, box, user_id=eva, email="eva@example.com", language="en")
        mailbox.answers["RCPT"] = "550 no such person"
        await post.round()
        await pool.execute("UPDATE mails SET created_at = created_at + interval '3 days'")
        last = await trial.latest(conn, user_id=eva)
        assert last is not None
        assert (last.state, (await invitations.list_all(conn, acme))[0].mail) == ("failed", "failed")
        await invitations.renew(conn, acme, id=id, box=box)
        await trial.put(conn, box, user_id=eva, email="eva@example.com", language="en")
        last = await trial.latest(conn, user_id=eva)
        assert last is not None
        assert (last.state, (await invitations.list_all(conn, acme))[0].mail) == ("waiting", "waiting")


async def test_a_notice_keeps_nobody_from_a_new_password_and_a_link_no_notice_from_being_sent(
    pool: Pool, acme: Actor, post: Post, mailbox: Mailbox
) -> None:
    """Whoever had been mailed a notice within five minutes asked for a link in vain; and a link, or a new password,
    withdrew the notices that were still waiting."""
    box, within = post.box, timedelta(hours=1)
    assert box is not None
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, acme, email="ana@example.com", name="Ana")
        for subject in ("First", "Second"):
            notice = (acme.organization_id, user.id, msgspec.structs.replace(LETTER, subject=subject))
            await outbox.put_many(conn, box, [notice], kind=outbox.NOTICES, within=within)
            if subject == "First":
                await post.round()
        await conn.execute("UPDATE mails SET due_at = now() + interval '1 minute' WHERE state = 'waiting'")
    assert [mail["subject"] for mail in mailbox.mails] == ["First"]
    assert not await forgotten.is_recent(pool, user_id=user.id)
    await forgotten.ask(pool, box, email="ana@example.com", language="en", address="192.0.2.1")
    await post.round()
    assert await forgotten.is_recent(pool, user_id=user.id)
    async with pool.acquire() as conn:
        await users.keep_password(conn, acme, user=user, hashed="$2b$")
    await post.hasten()
    await post.round()
    assert [mail["subject"] for mail in mailbox.mails] == ["First", "Choose a new password", "Second"]


async def test_who_leaves_an_organization_is_mailed_nothing_about_it(
    pool: Pool, acme: Actor, post: Post, mailbox: Mailbox
) -> None:
    """Notices that waited for the server, for twelve hours if need be, were still sent to who had been removed."""
    box, within, other = post.box, timedelta(hours=1), await organization(pool)
    assert box is not None
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, acme, email="ana@example.com", name="Ana")
        for actor in (acme, other):
            await memberships.add(conn, actor, user_id=user.id, role="viewer")
        for whose, subject in ((acme.organization_id, "Theirs"), (other.organization_id, "Hers"), (None, "Operators'")):
            mail = msgspec.structs.replace(LETTER, subject=subject)
            await outbox.put_many(conn, box, [(whose, user.id, mail)], kind=outbox.NOTICES, within=within)
        report = msgspec.structs.replace(LETTER, subject="Receipts")
        subject_id = noticing.report_subject(user.id)
        await outbox.put_many(conn, box, [(None, subject_id, report)], kind=daily.KIND, within=within)
        await memberships.remove(conn, acme, user_id=user.id)
        await conn.execute("INSERT INTO operators (user_id, role, created_at) VALUES ($1, 'support', now())", user.id)
        await accounts.remove(conn, Principal("cli"), user_id=user.id, email=user.email)
    await post.round()
    assert [mail["subject"] for mail in mailbox.mails] == ["Hers"]


@pytest.mark.parametrize(
    ("role", "console", "expected"),
    [
        # Sees none of what a developer does, nor pending decisions and receipts.
        ("billing", "finance", ["Elsewhere"]),
        # Sees all of it.
        ("admin", "auditor", ["Elsewhere", "Operators'", "Receipts", "Theirs"]),
    ],
)
async def test_who_gets_a_lesser_role_is_not_mailed_what_they_may_no_longer_see(
    pool: Pool, acme: Actor, post: Post, mailbox: Mailbox, role: str, console: str, expected: list[str]
) -> None:
    box, within, other = post.box, timedelta(hours=1), await organization(pool)
    assert box is not None
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, acme, email="ana@example.com", name="Ana")
        for actor in (acme, other):
            await memberships.add(conn, actor, user_id=user.id, role="developer")
        await conn.execute("INSERT INTO operators (user_id, role, created_at) VALUES ($1, 'operator', now())", user.id)
        for whose, id, kind, subject in (
            (acme.organization_id, user.id, outbox.NOTICES, "Theirs"),
            (other.organization_id, user.id, outbox.NOTICES, "Elsewhere"),
            (None, user.id, outbox.NOTICES, "Operators'"),
            (None, noticing.report_subject(user.id), daily.KIND, "Receipts"),
        ):
            mail = msgspec.structs.replace(LETTER, subject=subject)
            await outbox.put_many(conn, box, [(whose, id, mail)], kind=kind, within=within)
        await memberships.change_role(conn, acme, user_id=user.id, role=role)
        await accounts.change_role(conn, Principal("cli"), user_id=user.id, email=user.email, role=console)
    await post.round()
    assert sorted(mail["subject"] for mail in mailbox.mails) == expected


async def test_a_mail_that_is_too_long_ends_earlier_and_keeps_its_last_link(
    pool: Pool, acme: Actor, post: Post, mailbox: Mailbox
) -> None:
    """One that was longer than its column kept back the mails and events of all organizations."""
    box = post.box
    assert box is not None
    text = "\n\n".join([f"{n} “{'ç' * 900}”\nhttps://sms.example.com/{n}" for n in range(40)])
    mails = [
        (acme.organization_id, uuid7(), Mail("ana@example.com", "Many", f"{text}\n\nYour choice:\nhttps://x\n")),
        (acme.organization_id, uuid7(), Mail("rui@example.com", "Many", f"{text}\n")),
        (acme.organization_id, uuid7(), Mail("eva@example.com", "Many", f"{'🎉' * 9000}\n")),
    ]
    async with pool.acquire() as conn:
        assert await outbox.put_many(conn, box, mails, kind="notices", within=timedelta(hours=1)) == 3
    await post.round()
    hers, his, none = [
        next(mail.get_content() for mail in mailbox.mails if mail["to"].startswith(name))
        for name in ("ana", "rui", "eva")
    ]
    assert hers.endswith("\n…\n\nYour choice:\nhttps://x\n")
    for shown in (hers, his):
        assert text.startswith(shown.partition("…")[0])
        assert len(shown.encode()) > 14_000
    assert none == "…\n"


@pytest.mark.parametrize("end", ["", "/", "//"])
def test_links_of_mails_have_one_slash(end: str) -> None:
    """Of an address that ends with one, those of notices led nowhere."""
    box = outbox.of(settings(1, public_url=f"https://sms.example.com{end}"))
    assert box is not None
    assert box.base_url == "https://sms.example.com"


async def test_the_command_says_what_happened(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"SMTP_URL": f"smtp://ana:geheim@127.0.0.1:{mailbox.port}", "MAIL_FROM": FROM}
    values["PUBLIC_URL"] = "https://sms.example.com"
    monkeypatch.delenv("HELIOGRAPH_DATABASE_URL", raising=False)  # it needs none
    for name, value in values.items():
        monkeypatch.setenv(f"HELIOGRAPH_{name}", value)

    async def run() -> tuple[int, str]:
        ended = await asyncio.to_thread(CliRunner().invoke, mail_app, ["test", "ana@example.com", "--json"])
        return ended.exit_code, ended.output

    code, said = await run()
    assert (code, '"credentials"' in said, "geheim" in said) == (1, True, False)
    monkeypatch.setenv("HELIOGRAPH_SMTP_URL", f"smtp://127.0.0.1:{mailbox.port}")
    code, said = await run()
    assert (code, "250 2.0.0 taken" in said) == (0, True)
    assert mailbox.mails[0]["subject"] == "Test mail from Heliograph"
    mailbox.answers["RCPT"] = "550 5.1.1 no such person"
    code, said = await run()
    assert (code, "550 5.1.1 no such person" in said) == (1, True)


def test_every_text_has_its_twin() -> None:
    for texts_of in [
        one for one in vars(texts).values() if isinstance(one, dict) and one.keys() & set(users.LANGUAGES)
    ]:
        assert texts_of.keys() == set(users.LANGUAGES)
        assert len({frozenset(re.findall(r"{\w+}", " ".join(found))) for found in texts_of.values()}) == 1


def test_a_name_in_braces_is_a_name() -> None:
    mail = texts.invitation("en", to="a@example.com", organization="{link}", inviter="{0}", note="{x}", link="L")
    assert mail.subject == "Invitation to {link}"
    assert "{0} has invited you to join {link}" in mail.text


async def test_doctor_says_whether_the_mail_server_lets_this_service_in(
    pool: Pool, mailbox: Mailbox, database_url: str
) -> None:
    async def said(configured: Settings) -> tuple[str, str]:
        async with pool.acquire() as conn:
            (check,) = [one for one in await doctor.examine(conn, configured) if one.check == "mail"]
        return check.state, check.detail

    assert await said(settings(mailbox.port, smtp_url="", database_url=database_url)) == (
        "ok",
        "no server is configured: invitations and new passwords are links to pass on",
    )
    where = f"127.0.0.1:{mailbox.port}"
    assert await said(settings(mailbox.port, database_url=database_url)) == (
        "ok",
        f"{where} accepts this service's login",
    )
    assert not [line for line, _ in mailbox.commands if line.startswith("MAIL")], "no mail is sent"
    mailbox.answers["EHLO"] = mailbox.answers["HELO"] = "554 go away"
    status, detail = await said(settings(mailbox.port, database_url=database_url))
    assert (status, detail.startswith(f"{where}: ")) == ("warning", True)
    status, detail = await said(settings(1, database_url=database_url))
    assert (status, "127.0.0.1:1: " in detail) == ("warning", True)
