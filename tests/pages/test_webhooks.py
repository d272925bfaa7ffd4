"""Webhook endpoints on pages: registered with code that verifies, tested, inspected, changed, disabled."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from html import unescape
from uuid import UUID

import msgspec
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.network.addresses import LONGEST_URL, parse_url
from heliograph.http.answers import KEPT_BYTES
from heliograph.pages import words
from heliograph.simulators.receiver import Options, Receiver
from heliograph.webhooks import endpoints, history, replays
from heliograph.webhooks.delivery import evidence, signing
from heliograph.webhooks.recording import feed, traffic
from heliograph.webhooks.recording.events import Event
from heliograph.webhooks.recording.events import record as store
from tests.hooks import DATA, KIND, attempted, delivering, record
from tests.hooks import settings as impatient
from tests.house.project import ROOT
from tests.rules.whatsapp_factories import SECRET_KEY

from .conftest import PASSWORD, Api, Browser, Page, Tenant, make_person, make_tenant, running
from .test_messages import send
from .test_sending import clock_session

UNDER = impatient(secret_key=SECRET_KEY)


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """An endpoint that may be on this machine."""
    allowed = {"webhook_allow_http": True, "webhook_allow_networks": "127.0.0.0/8"}
    async with running(database_url, **allowed) as found:
        yield found


@contextlib.asynccontextmanager
async def receiving(options: Options | None = None) -> AsyncIterator[Receiver]:
    made = Receiver(options or Options())
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def register(owner: Browser, url: str, *, mode: str = "live", events: str = "message.delivered") -> Page:
    where = "" if mode == "live" else "?mode=test"
    page = await owner.get("/webhooks/new" + where)
    form = page.form("/webhooks" + where) | {"url": url, "subscribed_events": events}
    return await owner.post("/webhooks" + where, form)


def secret_in(page: Page) -> str:
    found = re.search(r'id="secret"[^>]*value="(whsec_[^"]+)"', page.text)
    assert found, page.words
    return found[1]


def id_in(page: Page) -> UUID:
    found = re.search(r"/webhooks/([0-9a-f-]{36})", page.text)
    assert found, page.words
    return UUID(found[1])


async def test_registered_tested_and_seen(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.get("/webhooks")
    assert "No endpoint yet" in page.words
    async with receiving() as receiver:
        page = await register(owner, receiver.url, events="message.delivered,message.failed")
        secret, id = secret_in(page), id_in(page)
        for said in (
            "hmac.compare_digest",
            "timingSafeEqual",
            "hash_equals",
            "hmac.Equal",
            "fixed_length_secure_compare",
        ):
            assert said in page.text
        assert page.text.count(secret) > 10
        assert "data-download" in page.text
        async with delivering(pool, UNDER):
            # The result is on the page that follows.
            page = await owner.submit(page, f"/webhooks/{id}/test")
        assert (page.status, f"/webhooks/{id}/events/" in page.path) == (200, True)
        assert "HTTP 200" in page.words
        assert "data-final" in page.text
        (came,) = receiver.events
        sent = {"timestamp": came.headers["x-service-timestamp"], "signature": came.headers["x-service-signature"]}
        assert signing.verify([secret], **sent, body=came.body, now=clock.now()) is None
    page = await owner.get(f"/webhooks/{id}")
    assert secret not in page.text
    assert "webhook.test" in page.words
    page = await owner.get("/webhooks")
    assert ("Working" in page.words, receiver.url in page.text) == (True, True)
    told = await pool.fetch("SELECT who_name FROM audit_log WHERE action = 'webhook.created' ORDER BY id")
    assert [row[0] for row in told] == ["Ana"]


async def test_an_address_is_judged_while_it_is_typed_and_when_it_is_sent(pool: Pool, owner: Browser) -> None:
    for url, said in (
        ("https://example.com/hooks", "✓ This address may be used."),
        ("https://10.0.0.1/", "✕ This address is not public"),
        ("ftp://example.com", "✕ The address must start with https://."),
        ("", ""),
    ):
        page = await owner.get("/webhooks/new?url=" + url, HX_Request="true")
        assert page.words.startswith(said), url
        assert "<html" not in page.text
        if said.startswith("✕") or not url:
            page = await register(owner, url)
            assert page.status == 422
            assert 'href="#url"' in page.text
            # In the summary and at the field.
            assert not said or page.words.count(said[2:]) == 2
            assert f'value="{url}"' in page.text
    page = await register(owner, "https://example.com/hooks", events="")
    assert (page.status, "Choose at least one event." in page.words) == (422, True)
    page = await register(owner, "https://example.com/hooks", events="root")
    assert page.status == 422
    assert await pool.fetchval("SELECT count(*) FROM webhook_endpoints") == 0


def test_every_word_of_the_rule_is_said_in_ours() -> None:
    source = (ROOT / "heliograph" / "base" / "network" / "addresses.py").read_text()
    told = {
        text.replace("{longest}", str(LONGEST_URL)) for text in re.findall(r'return f?"([a-zA-Z][^"]+ [^"]+)"', source)
    }
    assert told == set(words.URL_PROBLEMS)
    assert parse_url("nonsense", allow_http=True) in told


async def test_a_double_click_registers_one_and_the_eleventh_says_why(pool: Pool, owner: Browser) -> None:
    page = await owner.get("/webhooks/new")
    form = page.form("/webhooks") | {"url": "https://example.com/hooks", "subscribed_events": "message.failed"}
    first, second = await owner.post("/webhooks", form), await owner.post("/webhooks", form)
    assert secret_in(first) == secret_in(second)
    assert await pool.fetchval("SELECT count(*) FROM webhook_endpoints") == 1
    assert not await pool.fetchval("SELECT count(*) FROM idempotency WHERE body LIKE '%whsec%'")
    for number in range(9):
        secret_in(await register(owner, f"https://example.com/{number}"))
    page = await register(owner, "https://example.com/one-more")
    assert (page.status, "already has ten active webhook endpoints" in page.words) == (422, True)


async def test_changed_rotated_disabled_and_enabled_again(pool: Pool, owner: Browser) -> None:
    page = await register(owner, "https://example.com/hooks")
    old, id = secret_in(page), id_in(page)
    page = await owner.get(f"/webhooks/{id}/edit")
    form = page.form(f"/webhooks/{id}/edit")
    assert form["url"] == "https://example.com/hooks"
    assert re.search(r'value="message.delivered" checked', page.text)
    wrong = await owner.post(f"/webhooks/{id}/edit", form | {"url": "https://127.0.0.1.nip.io:0/"})
    assert wrong.status == 422
    page = await owner.post(
        f"/webhooks/{id}/edit",
        form | {"url": "https://example.com/new", "subscribed_events": "message.read", "description": "<b>shop</b>"},
    )
    assert ("https://example.com/new" in page.words, "message.read" in page.words) == (True, True)
    assert "<b>shop" not in page.text
    page = await owner.submit(await owner.get(f"/webhooks/{id}/rotate"), f"/webhooks/{id}/rotate")
    assert secret_in(page) != old
    assert "both secrets sign" in page.words
    rotating, before = await owner.get(f"/webhooks/{id}/rotate"), await owner.get(f"/webhooks/{id}")
    page = await owner.submit(await owner.get(f"/webhooks/{id}/disable"), f"/webhooks/{id}/disable")
    assert ("Disabled" in page.words, "disabled on request" in page.words) == (True, True)
    # A form that was opened before.
    late = await owner.submit(rotating, f"/webhooks/{id}/rotate")
    assert (late.status, late.path) == (200, f"/webhooks/{id}"), late.words
    for answer in (late, await owner.submit(before, f"/webhooks/{id}/pause")):
        assert ("This webhook endpoint is disabled" in answer.words, answer.is_refusal) == (True, True), answer.words
    page = await owner.submit(page, f"/webhooks/{id}/enable")
    assert "Not tried yet" in page.words
    told = await pool.fetch("SELECT action FROM audit_log WHERE action ~ '^webhook' ORDER BY id")
    assert [row[0] for row in told] == [
        "webhook.created",
        "webhook.changed",
        "webhook.secret_rotated",
        "webhook.disabled",
        "webhook.changed",
    ]


ENDED = """
INSERT INTO webhook_endpoints (organization_id, id, url, subscribed_events, status, secret, created_at, disabled_at)
SELECT $1, id, 'https://example.com/old-' || n, '{}', 'disabled', '', now(), now() - n / 3 * interval '1 day'
  FROM unnest($2::uuid[]) WITH ORDINALITY AS made (id, n)
"""


async def test_disabled_endpoints_are_out_of_the_way_in_pages(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await register(owner, "https://example.com/used")
    # Three were disabled at a time.
    await pool.execute(ENDED, tenant.actor.organization_id, [uuid7() for _ in range(60)])
    path, seen = "/webhooks?limit=25", []
    for most in (25, 25, 10):
        page = await owner.get(path)
        assert "https://example.com/used" in page.words
        listed = re.findall(r">https://example.com/old-(\d+)<", page.text)
        assert len(listed) == most
        seen += map(int, listed)
        older = re.search(r'rel="next" href="([^"]+)"', page.text)
        path = unescape(older[1]) if older else ""
    assert not path
    assert sorted(seen) == list(range(1, 61))
    assert [one // 3 for one in seen] == sorted(one // 3 for one in seen)
    await pool.execute("UPDATE webhook_endpoints SET status = 'disabled', disabled_at = now() WHERE status = 'active'")
    page = await owner.get("/webhooks")
    assert ("No active endpoint" in page.words, "No endpoint yet" in page.words) == (True, False)


async def test_another_address_asks_for_the_password_as_another_endpoint_does(pool: Pool, owner: Browser) -> None:
    """A new endpoint used to ask for the password while a changed URL did not, which is what a stranger at an open
    screen would change."""
    url = "https://example.com/hooks"
    edit = f"/webhooks/{id_in(await register(owner, url))}/edit"
    form = (await owner.get(edit)).form(edit)
    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    await owner.asked_again(edit)
    changed = form | {"url": "https://example.com/elsewhere", "subscribed_events": "message.delivered"}
    asked = await owner.post(edit, changed)
    assert (asked.status, await pool.fetchval("SELECT url FROM webhook_endpoints")) == (403, url)
    page = await owner.submit(asked, edit, _password=PASSWORD)
    assert (page.path, "The endpoint is changed." in page.words) == (edit.removesuffix("/edit"), True)


async def test_attempts_are_leafed_through_and_one_is_sent_again(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.pages.lists.pagination.USUAL", 3)
    async with receiving(Options(status=503)) as receiver:
        id = id_in(await register(owner, receiver.url))
        events = await record(pool, tenant.actor, 5)
        async with delivering(pool, impatient(secret_key=SECRET_KEY, webhook_schedule="0")):
            await attempted(pool, 5)
        page = await owner.get(f"/webhooks/{id}")
        assert ("Failing" in page.words, "5 failures in a row" in page.words) == (True, True)
        # The filters are above what they filter.
        places = [page.text.index(one) for one in ("data-chart", 'id="attempts"', 'id="result-filter"', '<tr id="a-')]
        assert places == sorted(places)
        assert len(re.findall(r"/events/[0-9a-f-]{36}", page.text)) == 3
        older = re.search(r'href="([^"]*after=[^"]*)"', page.text)
        assert older
        page = await owner.get(older[1])
        assert len(re.findall(r"/events/[0-9a-f-]{36}", page.text)) == 2
        assert "after=" not in (await owner.get(older[1].replace("after=", "after=x"))).path
        here = f"/webhooks/{id}?result=refused&kind=message.delivered&range=1h"
        page = await owner.get(here)
        assert len(re.findall(r"/events/[0-9a-f-]{36}", page.text)) == 3
        older = re.search(r'href="([^"]*after=[^"]*)"', page.text)
        assert older
        page = await owner.get(unescape(older[1]))
        assert len(re.findall(r"/events/[0-9a-f-]{36}", page.text)) == 2
        assert ("result=refused" in page.text, '<option value="refused" selected>' in page.text) == (True, True)
        page = await owner.get(f"/webhooks/{id}?result=timeout")
        assert "No attempt matches all of these filters." in page.words
        assert (
            f'href="/webhooks/{id}"><svg'
            in page.text.partition('aria-label="Drop one filter"')[2].partition("</ul>")[0]
        )
        # A value that is not offered selects nothing.
        assert "/events/" in (await owner.get(f"/webhooks/{id}?result=eaten&kind=eaten")).text
        monkeypatch.setattr("heliograph.webhooks.history.attempts", partial(history.attempts, look=2))
        page = await owner.get(f"/webhooks/{id}?result=timeout")
        assert ("Searched the attempts back to" in page.words, "Search further back" in page.words) == (True, True)
        monkeypatch.undo()
        page = await owner.get(f"/webhooks/{id}/events/{events[0]}")
        assert ("Refused HTTP 503" in page.words, "Your endpoint answered, but not with a 2xx." in page.words) == (
            True,
            True,
        )
        assert 'href="/guide/webhooks">Read more<' in page.text
        beside = await owner.get(f"/webhooks/{id}?result=refused&open={events[0]}")
        assert ("is-open" in beside.text, "Refused HTTP 503" in beside.words) == (True, True)
        opened = beside.text.partition('id="panel"')[2]
        assert f"/webhooks/{id}/events/{events[0]}" in opened
        assert (await owner.get(f"/webhooks/{id}?open={UUID(int=9)}")).status == 404
        receiver.options = Options()
        listed = await owner.get(f"/webhooks/{id}")
        page = await owner.submit(page, f"/webhooks/{id}/events/{events[0]}/resend")
        assert "It is on its way again." in page.words
        async with delivering(pool, UNDER):
            await attempted(pool, 6)
        page = await owner.get(f"/webhooks/{id}/events/{events[0]}")
        assert "Delivered HTTP 200" in page.words
        assert page.words.index("Attempt 2") < page.words.index("Attempt 1")
        # New attempts are counted above the rows while somebody reads the list, and are not inserted.
        top = re.findall('data-top="([^"]+)"', listed.text)[0]
        region = await owner.get(f"/webhooks/{id}?top={top}", HX_Request="true")
        assert (tried(region), "1 newer" in region.words) == (tried(listed), True)
        assert len(tried(await owner.get(f"/webhooks/{id}", HX_Request="true"))) == 6


def tried(page: Page) -> list[str]:
    """The attempts that a page lists."""
    return re.findall(r'<tr id="a-([0-9a-f-]{36}-\d+)"', page.text)


async def test_attempts_of_one_message(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    ids = [await send(api, tenant) for _ in range(2)]
    async with receiving(Options(status=503)) as receiver:
        id = id_in(await register(owner, receiver.url))
        made = [
            Event(tenant.actor.organization_id, uuid7(), KIND, "req-1", DATA, clock.now(), UUID(message))
            for message in ids
        ]
        async with pool.acquire() as conn:
            await store(conn, made)
        for message, event in zip(ids, made, strict=True):
            await pool.execute("UPDATE messages SET event_id = $2 WHERE id = $1", UUID(message), event.id)
        (of_none,) = await record(pool, tenant.actor)
        async with delivering(pool, impatient(secret_key=SECRET_KEY, webhook_schedule="0,0.05")):
            await attempted(pool, 6)
        receiver.options = Options()
        async with pool.acquire() as conn:
            await replays.resend(conn, tenant.actor, endpoint_id=id, event_id=made[0].id)
        (at_once,) = await record(pool, tenant.actor)
        async with delivering(pool, UNDER):
            await attempted(pool, 8)
    await pool.execute("UPDATE messages SET event_id = $2 WHERE id = $1", UUID(ids[1]), UUID(at_once))
    await pool.execute("UPDATE events SET message_id = NULL WHERE id = $1", made[1].id)

    async def listed(query: str) -> list[tuple[str, str]]:
        page = await owner.get(f"/webhooks/{id}?{query}")
        return re.findall(r'id="a-([0-9a-f-]{36})-(\d)"', page.text)

    first, second = str(made[0].id), str(made[1].id)
    assert {event for event, _ in await listed("")} == {first, second, of_none, at_once}
    assert await listed(f"message={ids[0]}") == [(first, "3"), (first, "2"), (first, "1")]
    assert await listed(f"message={ids[0]}&result=delivered") == [(first, "3")]
    assert await listed(f"message={ids[0]}&result=failed") == [(first, "2"), (first, "1")]
    # A success at the first attempt is stored elsewhere.
    assert await listed(f"message={ids[1]}") == [(at_once, "1")]
    assert await listed(f"message={ids[1]}&result=failed") == []
    page = await owner.get(f"/webhooks/{id}?message={UUID(int=9)}")
    assert ("There is no such message." in page.words, "No attempt matches all of these filters." in page.words) == (
        True,
        True,
    )
    assert "This is not an id." in (await owner.get(f"/webhooks/{id}?message=x")).words


async def test_how_long_until_nothing_waits(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with receiving() as receiver:
        id = id_in(await register(owner, receiver.url))
        await record(pool, tenant.actor, 4)
        assert "none was delivered in the last 5 minutes" in (await owner.get(f"/webhooks/{id}")).words
        async with delivering(pool, UNDER):
            await attempted(pool, 4)
        assert "a minute are delivered" not in (await owner.get(f"/webhooks/{id}")).words
        await record(pool, tenant.actor, 2)
        page = await owner.get(f"/webhooks/{id}")
        assert "0.8 a minute are delivered: about 2 min 30 s until it is empty" in page.words
        # Events to be retried later wait for that time, not for the pace.
        await pool.execute("UPDATE queue SET due_at = due_at + interval '1 hour'")
        assert "a minute are delivered" not in (await owner.get(f"/webhooks/{id}")).words


async def test_a_delivery_is_shown_although_the_secret_does_not_open_any_more(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """The secret key was lost: nothing can be signed before the secret is rotated."""
    async with receiving() as receiver:
        id = id_in(await register(owner, receiver.url))
        await pool.execute(r"UPDATE webhook_endpoints SET secret = '\x01' || gen_random_uuid()::text::bytea")
        (event,) = await record(pool, tenant.actor)
        async with delivering(pool, impatient(secret_key=SECRET_KEY, webhook_schedule="0,3600")):
            await attempted(pool, 1)
        page = await owner.get(f"/webhooks/{id}/events/{event}")
        assert (page.status, "How the signature is computed" in page.words) == (200, False), page.words
        await owner.submit(await owner.get(f"/webhooks/{id}/rotate"), f"/webhooks/{id}/rotate")
        page = await owner.submit(page, f"/webhooks/{id}/events/{event}/resend")
        async with delivering(pool, UNDER):
            await attempted(pool, 2)
        assert receiver.counters.requests == 1


async def test_a_failure_is_laid_open_and_recovered(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Journey 6: an endpoint is down, its attempts are inspected, the secret is rotated, and everything it missed is
    delivered."""
    async with receiving(Options(status=500, answer=b'{"error":"<script>no disk</script>"}')) as receiver:
        page = await register(owner, receiver.url)
        id, old = id_in(page), secret_in(page)
        events = await record(pool, tenant.actor, 4)
        async with delivering(pool, impatient(secret_key=SECRET_KEY, webhook_schedule="0")):
            await attempted(pool, 4)
        page = await owner.get(f"/webhooks/{id}?result=failed")
        assert len(set(re.findall(r"/events/([0-9a-f-]{36})", page.text))) == 4
        here = f"/webhooks/{id}/events/{events[1]}"
        page = await owner.get(here)
        # The response and its origin, and the request, with its signature.
        assert "HTTP/1.1 500" in page.words
        assert "{&#34;error&#34;:&#34;&lt;script&gt;no disk" in page.text
        assert "Address 127.0.0.1 ·" in page.words
        assert "✓ A current secret produces the same signature." in page.words
        shown = re.search(r"x-service-signature: (v1=[0-9a-f]{64})", page.text)
        assert shown
        sent = next(one for one in receiver.events if one.headers["x-service-event-id"] == events[1])
        assert sent.headers["x-service-signature"] == shown[1]
        assert "+420777123456" in page.text
        page = await owner.submit(await owner.get(f"/webhooks/{id}/rotate"), f"/webhooks/{id}/rotate")
        new = secret_in(page)
        assert "✓ A current secret" in (await owner.get(here)).words  # the one before it still signs
        receiver.options = Options(secrets=(new, old))
        page = await owner.get(f"/webhooks/{id}/replay")
        assert page.form(f"/webhooks/{id}/replay")["since"] == "24h"
        form = {"what": "failed", "since": "1h", "kinds": "message.delivered"}
        wrong = await owner.submit(page, f"/webhooks/{id}/replay", **(form | {"kinds": ""}))
        assert (wrong.status, "Choose at least one event." in wrong.words) == (422, True)
        page = await owner.submit(page, f"/webhooks/{id}/replay", **form)
        assert ("are queued behind new ones" in page.words, "Running" in page.words) == (True, True)
        again = await owner.submit(await owner.get(f"/webhooks/{id}/replay"), f"/webhooks/{id}/replay", **form)
        assert (again.status, "already running" in again.words) == (422, True)
        async with pool.acquire() as conn:
            assert await replays.advance(conn) == 4
        async with delivering(pool, UNDER):
            await receiver.wait_for(lambda it: it.counters.received == 4)
            await attempted(pool, 8)
    taken = [one.id for one in receiver.events if one.status == 200]
    assert sorted(taken) == sorted(events)
    assert "Completed" in (await owner.get(f"/webhooks/{id}/replay")).words
    assert "Delivered HTTP 200" in (await owner.get(here)).words
    page = await owner.get(here, accept_language="pt")
    assert ("primeiro byte" in page.words, "first byte" in page.words) == (True, False)


async def test_an_example_of_any_kind_goes_to_nobody_else(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with receiving() as receiver, receiving() as other:
        id = id_in(await register(owner, receiver.url))
        await register(owner, other.url, events="message.failed")
        page = await owner.get(f"/webhooks/{id}")
        async with delivering(pool, UNDER):
            page = await owner.submit(page, f"/webhooks/{id}/test", kind="message.failed")
        assert ("message.failed example" in page.words, "HTTP 200" in page.words) == (True, True)
        (came,) = receiver.events
        body = msgspec.json.decode(came.body)
        assert (body["type"], body["data"]["example"]) == ("message.failed", True)
        assert not other.events
        async with pool.acquire() as conn:
            actor = tenant.actor
            found = await feed.read(conn, actor, kind="message.failed", limit=10)
            assert found.events == []
            since = clock.now() - timedelta(hours=1)
            await replays.replay(conn, actor, endpoint_id=id, from_at=since, kinds=["message.delivered"])
            assert await replays.advance(conn) == 0
        page = await owner.post(f"/webhooks/{id}/test", page.form("/preferences") | {"_once": "x", "kind": "nonsense"})
        assert page.path == f"/webhooks/{id}"


async def test_who_may_not_see_numbers_sees_none(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with receiving(Options(status=500, answer=b"no such person: +420777123456")) as receiver:
        id = id_in(await register(owner, receiver.url))
        (event,) = await record(pool, tenant.actor)
        async with delivering(pool, impatient(secret_key=SECRET_KEY, webhook_schedule="0")):
            await attempted(pool, 1)
    here = f"/webhooks/{id}/events/{event}"
    assert "+420777123456" in (await owner.get(here)).text
    for role, may_reveal in (("developer", True), ("viewer", False)):
        await make_person(pool, tenant, f"{role}@example.com", role)
        person = Browser(owner.base_url)
        await person.sign_in(f"{role}@example.com")
        page = await person.get(here)
        assert page.status == 200
        assert "420777123456" not in page.text
        assert "••• 3456" in page.text
        assert ("Show this one" in page.words) == may_reveal
        if may_reveal:
            revealed = await person.submit(page, here + "/reveal")
            assert revealed.text.count("+420777123456") >= 3
            # A session left open reveals nothing, as with messages.
            await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
            await person.asked_again("/account/password")
            asked = await person.submit(page, here + "/reveal")
            assert (asked.status, "420777123456" in asked.text) == (403, False)
        await person.session.close()
    told = await pool.fetch("SELECT who_name, object_id FROM audit_log WHERE action = 'event.revealed' ORDER BY id")
    assert [tuple(row) for row in told] == [("Developer", event)]


async def test_a_receiver_does_not_choose_how_much_is_kept(pool: Pool, tenant: Tenant) -> None:
    async with receiving(Options(status=500, answer=b"x" * 60_000)) as receiver:
        async with pool.acquire() as conn:
            rules = endpoints.rules(UNDER)
            await endpoints.create(
                conn, tenant.actor, url=receiver.url, subscribed_events=["message.delivered"], rules=rules
            )
        await record(pool, tenant.actor, 60)
        async with delivering(pool, impatient(secret_key=SECRET_KEY, webhook_schedule="0")):
            await attempted(pool, 60)
    kept = await pool.fetchrow("SELECT count(*), sum(length(body)), max(length(body)) FROM webhook_attempt_evidence")
    assert kept is not None
    assert 0 < kept[0] < 60
    assert kept[1] <= evidence.BYTES + 60 * evidence.RATE
    assert kept[2] == KEPT_BYTES


async def test_modes_and_organizations_are_apart(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    id = id_in(await register(owner, "https://example.com/test", mode="test"))
    assert "https://example.com/test" in (await owner.get("/webhooks?mode=test")).words
    assert "https://example.com/test" not in (await owner.get("/webhooks")).words
    assert (await owner.get(f"/webhooks/{id}")).status == 404
    other = await make_tenant(pool)
    async with pool.acquire() as conn:
        await conn.execute("UPDATE webhook_endpoints SET organization_id = $1, mode = 'live'", other.id)
    token = (await owner.get("/webhooks")).form("/preferences")["_token"]
    for path in ("", "/edit", "/disable", "/rotate", "/replay", f"/events/{id}"):
        assert (await owner.get(f"/webhooks/{id}{path}")).status == 404, path
    for path in (
        "/edit",
        "/disable",
        "/enable",
        "/rotate",
        "/test",
        "/replay",
        f"/events/{id}/resend",
        f"/events/{id}/reveal",
    ):
        answer = await owner.post(f"/webhooks/{id}{path}", {"_token": token, "_once": path, "url": "https://a.com/"})
        assert answer.status == 404, path


async def test_a_viewer_reads_and_changes_nothing(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    id = id_in(await register(owner, "https://example.com/hooks"))
    await make_person(pool, tenant, "vera@example.com", "viewer")
    viewer = Browser(owner.base_url)
    await viewer.sign_in("vera@example.com")
    page = await viewer.get(f"/webhooks/{id}")
    assert (page.status, "Edit" in page.words, "Disable" in page.words) == (200, False, False)
    assert "New endpoint" not in (await viewer.get("/webhooks")).words
    await viewer.session.close()


async def test_paused_and_resumed_by_buttons_and_enabled_with_what_it_missed(pool: Pool, owner: Browser) -> None:
    async with receiving() as receiver:
        id = id_in(await register(owner, receiver.url))
        page = await owner.submit(await owner.get(f"/webhooks/{id}"), f"/webhooks/{id}/pause")
        assert "The endpoint is paused." in page.words
        assert "Paused" in page.words
        assert f"/webhooks/{id}/test" not in page.text
        page = await owner.get("/webhooks")
        assert ("Paused" in page.words, receiver.url in page.text) == (True, True)
        assert f"Webhooks to {receiver.url} have been paused since" in (await owner.get("/")).words
        page = await owner.get(f"/webhooks/{id}/replay")
        assert "What waits is sent once it is resumed." in page.words
        page = await owner.submit(await owner.get(f"/webhooks/{id}"), f"/webhooks/{id}/resume")
        assert "What waited is on its way" in page.words
        assert await pool.fetchval("SELECT count(*) FROM webhook_replays WHERE cause = 'return'") == 1
        page = await owner.get(f"/webhooks/{id}/disable")
        page = await owner.submit(page, f"/webhooks/{id}/disable")
        assert "0 deliveries were dropped" in page.words
        page = await owner.post(f"/webhooks/{id}/enable", page.form(f"/webhooks/{id}/enable") | {"recover": "yes"})
        assert "What it missed is on its way" in page.words
        page = await owner.post(
            f"/webhooks/{id}/rotate", (await owner.get(f"/webhooks/{id}/rotate")).form(f"/webhooks/{id}/rotate")
        )
        page = await owner.get(f"/webhooks/{id}")
        assert "Both secrets sign until" in page.words


async def test_charts_of_an_endpoint_and_times_of_ones_own(pool: Pool, owner: Browser) -> None:
    async with receiving(Options(status=500)) as receiver:
        id = id_in(await register(owner, receiver.url))
        actor = await pool.fetchval("SELECT organization_id FROM webhook_endpoints")
        async with delivering(pool, UNDER):
            await record(
                pool, Actor(organization_id=actor, key_id=None, mode="live", scopes=frozenset(), state="active")
            )
            await attempted(pool, 3)
    async with pool.acquire() as conn:
        await traffic.fold(conn)
    page = await owner.get(f"/webhooks/{id}")
    assert "0 attempts delivered, 3 failed." in page.words
    assert "No attempt received a 2xx response." in page.words
    # Intervals of 24 hours that start at some hour are not labelled as if they were days.
    await pool.execute("UPDATE users SET time_zone = 'Asia/Kolkata'")
    await clock_session(owner)
    month = await owner.get(f"/webhooks/{id}?range=30d")
    assert re.search(r"attempts · \d+ \w+ \d{4}, \d\d:30 – \d+ \w+ \d{4}, \d\d:30 · Asia/Kolkata", month.words)
    file = await owner.get(f"/webhooks/{id}?csv=attempts")
    assert file.text.lstrip("\ufeff").startswith("Time,Delivered,Refused")
    page = await owner.get(f"/webhooks/{id}/replay")
    at = clock.iso(clock.now() - timedelta(minutes=5))
    form = {"since": "custom", "kinds": "message.delivered"}
    for wrong in ({"from": ""}, {"from": "yesterday"}, {"from": at, "to": "2001-01-01"}, {"from": "2001-01-01"}):
        again = await owner.submit(page, f"/webhooks/{id}/replay", **(form | wrong))
        assert (again.status, 'href="#from"' in again.text) == (422, True), wrong
        # All that is wrong is said at once.
        again = await owner.submit(page, f"/webhooks/{id}/replay", **(form | wrong | {"to": "tomorrow", "kinds": ""}))
        assert ['href="#kinds"' in again.text, 'href="#to"' in again.text] == [True, True], wrong
    done = await owner.submit(page, f"/webhooks/{id}/replay", **(form | {"from": at, "to": ""}))
    assert "It is on its way" in done.words


async def test_the_line_that_listens_on_ones_own_machine(owner: Browser) -> None:
    for path in ("/webhooks", "/webhooks/catcher"):
        page = await owner.get(path)
        assert f"heliograph login --url {owner.base_url} --profile live" in page.words, path
        assert "heliograph listen --forward-to http://localhost:3000/hooks --profile live" in page.words, path
    page = await owner.get("/webhooks?mode=test")
    assert "heliograph listen --forward-to http://localhost:3000/hooks --profile test" in page.words
