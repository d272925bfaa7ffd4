"""Notices by mail and to endpoints: sent to those who want them and may see them, and once."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
import pytest

from heliograph import notices
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7
from heliograph.base.network.smtp import Mail
from heliograph.base.process.settings import Settings
from heliograph.mail import outbox
from heliograph.mail.outbox import ClaimedMail, Outbox
from heliograph.notices import Notice
from heliograph.pages.noticing import mail as mails_of
from heliograph.people import memberships, users
from heliograph.people.noticing import choices, telling
from heliograph.people.roles import RoleRequired
from heliograph.webhooks import endpoints
from tests.rules.factories import organization

CLI = Principal("cli", name="test")
SETTINGS = Settings(
    secret_key="a secret key for tests, long enough",
    smtp_url="smtp://127.0.0.1:25",
    mail_from="Acme <no-reply@example.com>",
    public_url="https://sms.example.com",
)


def box() -> Outbox:
    found = outbox.of(SETTINGS)
    assert found is not None
    return found


async def member(pool: Pool, actor: Actor, email: str, role: str) -> Actor:
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, CLI, email=email)
        await memberships.add(conn, actor, user_id=user.id, role=role)
    return msgspec.structs.replace(actor, by=Principal("person", user.id, name=email))


async def tell(pool: Pool, *told: Notice, mails: bool = True) -> int:
    async with pool.acquire() as conn, conn.transaction():
        await notices.record_many(conn, told)
        return await telling.tell(conn, box=box() if mails else None, writes=mails_of.compose)


async def mailed(pool: Pool) -> list[Mail]:
    rows = await pool.fetch("SELECT id, kind, sealed, attempts FROM mails WHERE kind = 'notices' ORDER BY id")
    return sorted((outbox.opened(box().key, ClaimedMail(**row)) for row in rows), key=lambda one: one.to)


async def choose(pool: Pool, actor: Actor, ways: Mapping[str, list[str] | None]) -> None:
    assert actor.user_id is not None
    async with pool.acquire() as conn:
        await choices.choose(conn, actor, user_id=actor.user_id, ways=ways)


async def choose_for_all(pool: Pool, actor: Actor, ways: Mapping[str, list[str] | None]) -> choices.Chosen:
    async with pool.acquire() as conn:
        return await choices.choose_for_all(conn, actor, ways=ways)


async def test_several_of_a_kind_are_one_line_of_one_mail_and_none_is_sent_twice(pool: Pool) -> None:
    actor = await organization(pool)
    await member(pool, actor, "ana@example.com", "owner")
    failing = [Notice(actor.organization_id, "webhook.disabled", str(n), f"https://{n}.example.com") for n in range(4)]
    assert await tell(pool, *failing, Notice(actor.organization_id, "quota.used", "95", facts={"left": 5, "total": 9}))
    (mail,) = await mailed(pool)
    name = await pool.fetchval("SELECT name FROM organizations")
    assert (mail.to, mail.subject) == ("ana@example.com", f"{name}: 2 notices")
    assert mail.text == (
        "95 % of the quota is used.\n5 of 9 messages are left.\nhttps://sms.example.com/usage\n\n"
        "4 endpoints were disabled.\n"
        "https://3.example.com, https://2.example.com, https://1.example.com …\nhttps://sms.example.com/webhooks\n\n"
        "What is mailed to you is your choice:\nhttps://sms.example.com/notices/choices\n"
    )
    # The same causes within the hour, and another check.
    assert await tell(pool, *failing) == 0
    assert len(await mailed(pool)) == 1


async def test_several_campaigns_on_whatsapp_are_linked_where_they_are_listed(pool: Pool) -> None:
    actor = await organization(pool)
    await member(pool, actor, "ana@example.com", "owner")
    facts = {"channel": "whatsapp", "reason": "wallet_insufficient_funds"}
    await tell(pool, *(Notice(actor.organization_id, "campaign.paused", n, n, "test", facts) for n in ("a", "b")))
    (mail,) = await mailed(pool)
    assert "\nhttps://sms.example.com/campaigns?channel=whatsapp&mode=test\n" in mail.text, mail.text


async def test_links_to_a_member_of_several_organizations_name_the_one_that_they_are_about(pool: Pool) -> None:
    """A session looks at one of them: a link that did not say which led to the wrong one's page, or to none."""
    actor, other = await organization(pool), await organization(pool)
    ana = await member(pool, actor, "ana@example.com", "owner")
    await member(pool, actor, "rui@example.com", "owner")
    await member(pool, other, "ana@example.com", "viewer")
    await tell(
        pool,
        Notice(actor.organization_id, "campaign.paused", "a", "Sale", "test", {"reason": "quota_exceeded"}),
        Notice(actor.organization_id, "sign_in.new", "b", facts={"address": "192.0.2.1"}, user_id=ana.user_id),
    )
    hers, his = [one.text for one in await mailed(pool)]
    look = f"https://sms.example.com/organizations/{actor.organization_id}/look?next="
    for link in (f"{look}/campaigns/a%3Fmode%3Dtest\n", f"{look}/notices/choices\n", "sms.example.com/account\n"):
        assert link in hers, hers
    assert ("https://sms.example.com/campaigns/a?mode=test\n" in his, "look?" in his) == (True, False)


async def test_who_is_removed_gets_no_notice_that_still_waits_for_the_mail_server(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    ana = await member(pool, actor, "ana@example.com", "viewer")
    await member(pool, other, "ana@example.com", "viewer")
    for one in (actor, other):
        await tell(pool, Notice(one.organization_id, "campaign.failed", "a", "Sale"))
    assert ana.user_id is not None
    async with pool.acquire() as conn:
        await memberships.remove(conn, actor, user_id=ana.user_id)
    left = await pool.fetch("SELECT organization_id FROM mails WHERE state = 'waiting'")
    assert [row["organization_id"] for row in left] == [other.organization_id]


async def test_each_is_told_what_they_see_and_chose_in_their_language(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    ana = await member(pool, actor, "ana@example.com", "owner")
    rui = await member(pool, actor, "rui@example.com", "admin")
    await member(pool, actor, "billing@example.com", "billing")
    await member(pool, other, "eve@example.com", "owner")
    await pool.execute("UPDATE users SET language = 'pt' WHERE email = 'rui@example.com'")
    await choose(pool, ana, {"campaign.paused": ["bell"]})
    await choose_for_all(pool, ana, {"member.joined": ["mail"]})
    await tell(
        pool,
        Notice(actor.organization_id, "campaign.paused", "a", "Sale", "test", {"reason": "quota_exceeded"}),
        Notice(actor.organization_id, "sign_in.new", "b", facts={"address": "192.0.2.1"}, user_id=ana.user_id),
    )
    first = {one.to: one for one in await mailed(pool)}
    assert sorted(first) == ["ana@example.com", "rui@example.com"]
    assert "Somebody signed in as you" in first["ana@example.com"].text
    assert "Sale" not in first["ana@example.com"].text
    assert "A campanha “Sale” está parada. (Teste)\n" in first["rui@example.com"].text
    assert "https://sms.example.com/campaigns/a?mode=test" in first["rui@example.com"].text
    await pool.execute("DELETE FROM mails")
    # The organization's choice applies to those who chose nothing; billing does not see the team.
    await choose(pool, rui, {"member.joined": []})
    await tell(pool, Notice(actor.organization_id, "member.joined", "c", "Zé", facts={"role": "sender"}))
    assert [(one.to, one.subject.partition(": ")[2]) for one in await mailed(pool)] == [
        ("ana@example.com", "Zé has joined the team.")
    ]


async def test_endpoints_are_sent_what_the_organization_chose(pool: Pool) -> None:
    actor = await organization(pool)
    owner = await member(pool, actor, "ana@example.com", "owner")
    events = "SELECT kind, mode, data FROM events ORDER BY id"
    await tell(pool, Notice(actor.organization_id, "quota.used", "80"))
    assert await pool.fetch(events) == []  # nobody subscribed
    async with pool.acquire() as conn:
        made, _ = await endpoints.create(
            conn,
            actor,
            url="https://example.com/hook",
            subscribed_events=["notice.created"],
            rules=endpoints.rules(SETTINGS),
        )
    await choose_for_all(pool, owner, {"campaign.completed": ["bell"]})
    await tell(
        pool,
        Notice(actor.organization_id, "quota.used", "95", facts={"left": 5}),
        Notice(actor.organization_id, "campaign.completed", "a"),
        Notice(actor.organization_id, "campaign.failed", "b", mode="test"),
        Notice(actor.organization_id, "sign_in.new", "c", user_id=owner.user_id),
        mails=False,
    )
    (event,) = await pool.fetch(events)
    notice = json.loads(event["data"])["notice"]
    assert (event["kind"], event["mode"]) == ("notice.created", "live")
    assert (notice["kind"], notice["object"], notice["facts"]) == ("quota.used", "95", {"left": 5})
    assert await pool.fetchval("SELECT line FROM queue WHERE kind = 'webhook'") == made.id
    assert await pool.fetchval("SELECT count(*) FROM notices WHERE NOT is_told") == 0


async def test_what_is_old_is_told_of_by_nobody(pool: Pool) -> None:
    actor = await organization(pool)
    await member(pool, actor, "ana@example.com", "owner")
    async with pool.acquire() as conn:
        await notices.record(conn, Notice(actor.organization_id, "quota.used", "80"))
    await pool.execute("UPDATE notices SET created_at = now() - interval '25 hours'")
    assert await tell(pool) == 1
    assert await mailed(pool) == []
    assert await tell(pool) == 0


async def test_mails_of_a_day_are_bounded_and_leave_room_for_invitations(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_A_DAY", 3)
    actor = await organization(pool)
    for n in range(2):
        await member(pool, actor, f"p{n}@example.com", "owner")
    for n in range(3):
        await tell(pool, Notice(actor.organization_id, "quota.used", str(80 + n)))
    assert len(await mailed(pool)) == 3
    async with pool.acquire() as conn:
        mail = Mail("x@example.com", "s", "t")
        assert await outbox.put(
            conn,
            box(),
            kind="invitation",
            content=mail,
            within=telling.WITHIN,
            organization_id=actor.organization_id,
            subject_id=uuid7(),
        )


async def test_choices_are_checked_and_kept_only_where_they_differ(pool: Pool) -> None:
    actor = await organization(pool)
    owner = await member(pool, actor, "ana@example.com", "owner")
    viewer = await member(pool, actor, "rui@example.com", "viewer")
    with pytest.raises(RoleRequired):
        await choose_for_all(pool, viewer, {"quota.used": []})
    for ways in ({"nothing": ["bell"]}, {"quota.used": ["pigeon"]}, {"sign_in.new": ["webhook"]}):
        with pytest.raises(Invalid):
            await choose_for_all(pool, owner, ways)
    with pytest.raises(Invalid):  # an event is the organization's
        await choose(pool, viewer, {"quota.used": ["webhook"]})
    chosen = await choose_for_all(
        pool, owner, {"quota.used": ["mail", "bell", "webhook"], "import.finished": [], "key.ending": ["bell"]}
    )
    assert dict(chosen) == {"import.finished": (), "key.ending": ("bell",)}
    assert dict(await choose_for_all(pool, owner, {"import.finished": None})) == {"key.ending": ("bell",)}
    actions = await pool.fetch("SELECT action FROM audit_log WHERE action LIKE '%notices_chosen' ORDER BY id")
    assert [row["action"] for row in actions] == ["organization.notices_chosen"] * 2
