"""Mails to operators about problems and waiting decisions: to those who want them and may see them, combined, once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import pytest

from heliograph.base.actor import Principal
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.network.smtp import Mail
from heliograph.base.sentences import Check, said
from heliograph.health import findings
from heliograph.mail import outbox
from heliograph.mail.outbox import ClaimedMail
from heliograph.overview.installation import telling
from heliograph.pages.noticing import operators as mails_of
from heliograph.people import users
from heliograph.people.operators import accounts, noticing
from heliograph.sms.accepting import sender_ids
from heliograph.sms.reports import daily
from tests.rules.factories import organization
from tests.rules.test_telling import box

CLI = Principal("cli", name="test")
NO_SESSION = said("no session bound")


def lost(name: str) -> Check:
    return Check(said("supplier %(name)s", name=name), "failed", NO_SESSION, said("Start a worker."))


async def operator(pool: Pool, name: str, role: str = "root") -> Principal:
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, CLI, email=f"{name}@example.com")
        await accounts.add(conn, CLI, user_id=user.id, email=user.email, role=role)
    return Principal("operator", user.id, name=name)


async def look(pool: Pool, *checks: Check, mails: bool = True) -> list[Mail]:
    """The mails after a check that found this."""
    writes = partial(mails_of.compose, console="https://ops.example.com/console")
    async with pool.acquire() as conn, conn.transaction():
        await findings.keep(conn, checks)
        await conn.execute("DELETE FROM mails")
        await telling.tell(conn, checks, box=box() if mails else None, writes=writes)
    rows = await pool.fetch("SELECT id, kind, sealed, attempts FROM mails ORDER BY id")
    return sorted((outbox.opened(box().key, ClaimedMail(**row)) for row in rows), key=lambda one: one.to)


async def later(pool: Pool, span: str) -> None:
    """As if everything had been reported this much earlier, and lasting conditions had begun then."""
    await pool.execute("UPDATE operator_tellings SET told_at = told_at - $1::text::interval", span)
    await pool.execute("UPDATE findings SET since = since - $1::text::interval", span)


async def choose(pool: Pool, who: Principal, ways: dict[str, list[str] | None]) -> noticing.Chosen:
    assert who.id is not None
    async with pool.acquire() as conn:
        return await noticing.choose(conn, who, user_id=who.id, ways=ways)


async def test_several_causes_are_one_mail_and_none_is_told_twice(pool: Pool) -> None:
    await operator(pool, "eva")
    assert await look(pool, lost("main"), mails=False) == [], "nothing is put in where no mails are sent"
    (mail,) = await look(pool, lost("main"), lost("backup"), Check(said("disk"), "ok", said("none is held up")))
    assert (mail.to, mail.subject) == ("eva@example.com", "Heliograph: 2 suppliers have no session.")
    assert mail.text == (
        "2 suppliers have no session.\n- supplier backup: no session bound\n  What to do: Start a worker.\n"
        "- supplier main: no session bound\n  What to do: Start a worker.\nhttps://ops.example.com/console/now\n\n"
        "What is mailed to you is your choice:\nhttps://ops.example.com/console/notices/choices\n"
    )
    # As long as it lasts, also after an hour.
    for _ in range(2):
        assert await look(pool, lost("main"), lost("backup")) == []
        await later(pool, "2 hours")


async def test_what_comes_and_goes_is_told_at_most_once_an_hour(pool: Pool) -> None:
    await operator(pool, "eva")
    assert len(await look(pool, lost("main"))) == 1
    for _ in range(3):
        assert await look(pool) == []
        assert await look(pool, lost("main")) == []
    # It came back within the hour, and still lasts when that is over.
    await pool.execute("UPDATE operator_tellings SET told_at = told_at - interval '61 minutes'")
    assert len(await look(pool, lost("main"))) == 1
    assert await look(pool, lost("main")) == []


async def test_what_was_told_before_the_clock_was_set_back_is_told_again_once(pool: Pool) -> None:
    """What came back was told to nobody for as long as the clock had been ahead."""
    await operator(pool, "eva")
    assert len(await look(pool, lost("main"), lost("backup"))) == 1
    assert await look(pool, lost("backup")) == []
    await later(pool, "-3 days")
    (mail,) = await look(pool, lost("main"), lost("backup"))
    assert mail.subject == "Heliograph: 2 suppliers have no session."
    await pool.execute("UPDATE operator_tellings SET told_at = told_at - interval '61 minutes'")
    await pool.execute("UPDATE findings SET since = since - interval '61 minutes' WHERE since < now()")
    assert await look(pool, lost("main"), lost("backup")) == []


@pytest.mark.parametrize("is_gone", [False, True])
async def test_who_is_no_operator_any_more_is_mailed_nothing_that_waits(pool: Pool, is_gone: bool) -> None:
    """Such as while the mail server is away; what waits for them as a member of an organization is sent."""
    eva, _ = await operator(pool, "eva"), await operator(pool, "rui")
    assert eva.id is not None
    assert len(await look(pool, lost("main"))) == 2
    letter, within = Mail("eva@example.com", "Receipts", "…"), timedelta(hours=1)
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await outbox.put_many(
            conn, box(), [(None, noticing.report_subject(eva.id), letter)], kind=daily.KIND, within=within
        )
        await outbox.put_many(
            conn, box(), [(actor.organization_id, eva.id, letter)], kind=outbox.NOTICES, within=within
        )
        if is_gone:
            await users.remove(conn, CLI, id=eva.id)
        else:
            await accounts.remove(conn, CLI, user_id=eva.id, email="eva@example.com")
    left = await pool.fetch("SELECT subject_id = $1, organization_id FROM mails WHERE state = 'waiting'", eva.id)
    own = [] if is_gone else [(True, actor.organization_id)]
    assert sorted(map(tuple, left)) == [(False, None), *own]


async def test_all_that_is_news_is_told_sender_ids_first_however_much_lasts(pool: Pool) -> None:
    await operator(pool, "eva")
    many = [lost(f"s{n:03}") for n in range(telling.MOST + 2)]
    async with pool.acquire() as conn:
        await sender_ids.request(conn, await organization(pool), value="PADARIA")
    # The rest is reported by the next check, while all of it lasts.
    for told in (range(telling.MOST - 1), range(telling.MOST - 1, telling.MOST + 2)):
        (mail,) = await look(pool, *many)
        assert [f"supplier s{n:03}: no session" in mail.text for n in range(len(many))] == [
            n in told for n in range(len(many))
        ]
        assert ("1 sender ID waits for a decision." in mail.text) == (0 in told)
    assert await look(pool, *many) == []


async def test_each_is_told_what_they_see_and_chose_in_their_language(pool: Pool) -> None:
    eva, _, _ = [await operator(pool, *one) for one in (("eva",), ("rui", "operator"), ("zita", "support"))]
    await pool.execute("UPDATE users SET language = 'pt' WHERE email = 'rui@example.com'")
    await choose(pool, eva, {"supplier.lost": [], "check.warning": ["mail"]})
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await sender_ids.request(conn, actor, value="PADARIA")
    warning = Check(said("holds"), "warning", NO_SESSION, said("Start a worker."))
    told = {one.to.partition("@")[0]: one for one in await look(pool, lost("main"), warning)}
    assert sorted(told) == ["eva", "rui", "zita"]
    assert told["eva"].subject == "Heliograph: holds: no session bound (+1)"
    assert "1 sender ID waits for a decision.\nhttps://ops.example.com/console/approvals\n" in told["eva"].text
    assert "main" not in told["eva"].text
    assert told["rui"].subject.startswith("Heliograph: fornecedor main: ")
    assert "1 remetente espera uma decisão." in told["rui"].text
    # Someone who cannot decide is not notified of waiting decisions.
    assert "sender ID" not in told["zita"].text


async def test_what_is_chosen_is_kept_where_it_differs_and_stands_in_the_log(pool: Pool) -> None:
    eva = await operator(pool, "eva")
    assert await choose(pool, eva, {"check.failed": ["bell", "mail"], "check.warning": []}) == {"check.warning": ()}
    kept = await pool.fetchval("SELECT notice_ways FROM operators")
    assert (noticing.silent(kept), noticing.ways(kept)["check.failed"]) == ({"check.warning"}, ("bell", "mail"))
    assert await choose(pool, eva, {"check.warning": None}) == {}
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'operator.notices_chosen'") == 2
    wrong: Sequence[dict[str, list[str] | None]] = ({"check.failed": ["webhook"]}, {"campaign.paused": ["bell"]})
    for ways in wrong:
        with pytest.raises(Invalid):
            await choose(pool, eva, ways)
    with pytest.raises(NotFound):
        await choose(pool, Principal("operator", uuid7()), {})


def test_a_check_is_told_as_what_it_is_of() -> None:
    receipts = said("receipts of %(name)s", name="main")
    for check, kind in (
        (lost("main"), "supplier.lost"),
        (Check(said("supplier %(name)s", name="main"), "warning", NO_SESSION, NO_SESSION), "check.warning"),
        (Check(receipts, "warning", NO_SESSION, NO_SESSION), "receipts.missing"),
        (Check(said("disk"), "failed", NO_SESSION, NO_SESSION), "check.failed"),
        (Check(said("holds"), "warning", NO_SESSION, NO_SESSION), "check.warning"),
    ):
        assert telling.kind_of(check) == kind
        assert kind in noticing.KINDS
