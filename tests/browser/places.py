"""The URLs of every page, for an organization and an installation that have something to show on each."""

from __future__ import annotations

import re
from uuid import UUID

import aiohttp

from heliograph.base import crypto
from heliograph.base.database import clock
from heliograph.base.ids import uuid7
from heliograph.campaigns.channels import sms as campaigns
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.consent import optouts
from heliograph.console import table as console_table
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.dashboard import table as dashboard_table
from heliograph.guard import holds
from heliograph.guard.holds import Found
from heliograph.people import invitations
from heliograph.prices import tariffs
from heliograph.prices.tariff import Rate
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.senders import numbers as number_rules
from heliograph.senders import rules as sender_rules
from heliograph.senders.book import NumberRule, SenderRule
from heliograph.sms.accepting import sender_ids
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.lookups import accounts as lookup_accounts
from heliograph.sms.management import drafts, rerouting
from heliograph.sms.reports import receipts
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import Receipt, ReceiptState
from heliograph.webhooks import endpoints, replays
from heliograph.webhooks.recording.events import KINDS
from heliograph.whatsapp.callbacks import dead_letters
from heliograph.whatsapp.callbacks.dead_letters import DeadLetter
from heliograph.whatsapp.mirror import apps
from tests.rules import whatsapp_factories
from tests.rules.factories import SUM_DAYS, message

from .conftest import Site

#: Routes of the dashboard that only redirect.
LEADS = frozenset({"/go", "/go/{anything}", "/palette"})
#: Pages for people who are not signed in.
DOOR = ("/", "/login", "/login/forgotten", "/enter", "/invitation")
#: The console's pages for people who are not signed in, or that work only once.
CONSOLE_DOOR = ("/console/login", "/console/setup")
#: Pages that need passkeys, which browsers do not support on an IP address.
PASSKEYS = "/console/account/passkeys/new"

#: An hour of messages, for the charts.
TRAFFIC = """
INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments,
                     to_sent, to_delivered)
VALUES ($1, date_trunc('hour', now(), 'UTC') - interval '2 hours', 'sms', 'live', 'MZ', 'HELIOGRAPH', $2, 'delivered',
        100, 100, '{}', '{}')
"""


#: Refusals that a program received yesterday: the longest words that the page of requests can show.
REFUSED = """
INSERT INTO request_counts (organization_id, hour, mode, operation, status, error_code, count, first_at, last_at)
VALUES ($1, date_trunc('hour', now(), 'UTC') - interval '20 hours', 'live', 'createWebhookEndpoint', 409,
        'webhook_endpoint_limit_reached', 1000, now() - interval '20 hours', now() - interval '20 hours')
"""
#: An attempt accepted by its supplier.
ATTEMPT = """
INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)
VALUES ($1, $2, 1, $3, 'accepted', now(), now())
"""


async def dashboard(site: Site) -> tuple[list[str], str]:
    """URLs of the dashboard's pages for the signed-in user, and the token of an invitation."""
    headers = {"authorization": f"Bearer {site.made.key}", "idempotency-key": "one"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            site.base + "/v1/sms/send", json={"to": "+258841234567", "message": "Olá"}, headers=headers
        ) as answer,
    ):
        message = (await answer.json())["message"]["id"]
    async with site.pool.acquire() as conn:
        _, invited, _ = await invitations.invite(conn, site.made.actor, email="rui@example.com", role="viewer")
        await site.link("rui.costa@example.com")
        member = await conn.fetchval("SELECT id FROM users WHERE email = 'rui.costa@example.com'")
        about = endpoints.rules(site.made.settings)
        hook, _ = await endpoints.create(
            conn, site.made.actor, url=site.made.receiver.url, subscribed_events=KINDS, rules=about
        )
        event = await replays.send_example(conn, site.made.actor, endpoint_id=hook.id, request_id="one")
        await records.create_many(conn, site.made.actor, entries=[Entry("+258841234567", "Ana", tags=("vip",))])
        person = await conn.fetchval("SELECT id FROM contacts")
        await optouts.add(conn, site.made.actor, phone="+258841234560", reason="asked for it")
        spec = SmsCampaignSpec(name="Spring sale", message_template="Olá", recipients=["+258841234561"])
        campaign = await campaigns.create(conn, site.made.actor, spec=spec, request_id="two")
        await conn.execute(TRAFFIC, site.made.actor.organization_id, UUID(int=0))
        await conn.execute(SUM_DAYS)
        await conn.execute(REFUSED, site.made.actor.organization_id)
    ids = {
        **{f"/messages/{{id}}{one}": message for one in ("", "/cancel")},
        "/team/members/{id}": str(member),
        "/contacts/{id}": str(person),
        "/contacts/{id}/edit": str(person),
        "/campaigns/{id}": str(campaign.id),
        "/campaigns/{id}/cancel": str(campaign.id),
        **{f"/keys/{{id}}/{one}": str(site.made.key_id) for one in ("revoke", "rotate", "rename")},
    }
    paths = [
        route.path.replace("{id}", ids.get(route.path, str(hook.id))).replace("{event}", str(event))
        for route in dashboard_table.ROUTES
        if route.method == "GET" and route.path not in LEADS
    ]
    return paths, invited


async def console(site: Site) -> list[str]:
    """URLs of the console's pages for a signed-in operator."""
    async with site.pool.acquire() as conn:
        asked = await sender_ids.request(conn, site.made.actor, value="G00GLE")
        (supplier, *_) = await routing.load(conn)
        operator = await conn.fetchval("SELECT user_id FROM operators")
        member, _ = await invitations.admit(conn, site.made.actor, email="mia@example.com", name="Mia", role="viewer")
        spec = SmsCampaignSpec(name="Autumn sale", message_template="Olá", recipients=["+258841234561"])
        campaign = await campaigns.create(conn, site.made.actor, spec=spec, request_id="three")
        draft = await drafts.begin(conn, name="draft", kind="smpp")
        way = Route(id=supplier.id, name="moz", country="MZ", choices=(Choice(supplier.id),))
        way = await rules.add(conn, way)
        async with conn.transaction():
            await rules.set_state(conn, await rules.lock(conn, route="moz"), "paused")
        priced = {"base_url": "https://x1y2z3.api.infobip.com", "price": "0.01", "currency": "USD"}
        key = suppliers.seal_key(site.made.settings)
        looked_up_by = await lookup_accounts.add(
            conn, key, name="mnp", kind="infobip", values=priced, secrets={"secret": "x"}
        )
        rate = Rate(country="MZ", price=45_000, currency="USD")
        await tariffs.import_rates(conn, [(1, rate)], kind="price", name="standard")
        (prices,) = await tariffs.list_tariffs(conn, "price")
        carried = SenderRule(id=uuid7(), supplier_id=supplier.id, country="MZ", action="allow")
        written = NumberRule(id=uuid7(), supplier_id=supplier.id, prefix="258", numbering=(1, 1))
        ruled = await sender_rules.put(conn, carried), await number_rules.put(conn, written)
        (entry, *_) = await rerouting.history(conn, route_id=way.id)
        app = await apps.ensure_app(conn, apps.seal_key(site.made.settings), "900", "secret", "verify", clock.now())
    of = site.made.actor.organization_id
    account, _ = await whatsapp_factories.account(site.pool, of, app)  # nothing listens at its address
    token = crypto.seal(apps.seal_key(site.made.settings), b"token", f"whatsapp_accounts/{account}/token")
    await site.pool.execute("UPDATE whatsapp_accounts SET token = $2 WHERE id = $1", account, token)
    await whatsapp_factories.number(site.pool, of, account)
    await whatsapp_factories.template(site.pool, of, account)
    receipt = Receipt(("nobody-s",), ReceiptState.UNDELIVERED, "258841234567", "G00GLE", b"nobody-s")
    async with site.pool.acquire() as conn, conn.transaction():
        await receipts.store(conn, [ReceivedReceipt(supplier.id, receipt)], policies={})
        attack = Found(of, "25884123", "block", ("thousand", "neighbours"), 80)
        ((_, suspicious),) = (await holds.begin(conn, [attack])).items()
        item = DeadLetter(app, clock.now(), "unknown account", b'{"text": "an item"}')
        await dead_letters.store(conn, apps.seal_key(site.made.settings), [item])
        (letter,) = await dead_letters.list_all(conn, apps.seal_key(site.made.settings), limit=1)
    place = await site.pool.fetchrow(
        "SELECT received_on, supplier_id, fingerprint FROM receipts WHERE keys = $1", ["nobody-s"]
    )
    assert place is not None
    organization = str(site.made.actor.organization_id)
    ids = {
        "organizations": organization,
        "suppliers": str(supplier.id),
        "operators": str(operator),
        "wallets": organization,
        "drafts": str(draft),
        "routes": str(way.id),
        "lookups": str(looked_up_by),
        "rates": str(prices.id),
        "whatsapp": str(account),
        "guard": str(suspicious),
        "receipts": str(place["fingerprint"]),
    }
    sent = await message(site.pool, site.made.actor, to="+258841234567", text="Olá", queued=False)
    await site.pool.execute(ATTEMPT, site.made.actor.organization_id, sent, supplier.id)
    paths = [f"/console/messages/{sent}", *(f"/console/queue/{act}?look=yes" for act in ("hold", "withdraw"))]
    for route in console_table.ROUTES:
        if (
            route.method == "GET"
            and route.path not in (*CONSOLE_DOOR, "/console", PASSKEYS)
            and not route.path.endswith(("/{month}/file", "/draft"))
        ):
            room = route.path.split("/")[2]
            if "{id}" in route.path and room not in (*ids, "approvals"):
                continue  # of an object that does not exist
            path = route.path.replace("{organization}", organization).replace("{month}", "2026-01")
            path = (
                path.replace("{member}", str(member.id))
                .replace("{entry}", str(entry.id))
                .replace("{key}", str(site.made.key_id))
                .replace("{sender}", str(asked.id))
                .replace("{campaign}", str(campaign.id))
                .replace("callbacks/{id}", f"callbacks/{letter.id}")
                .replace("rules/sender/{id}", f"rules/sender/{ruled[0]}")
                .replace("rules/number/{id}", f"rules/number/{ruled[1]}")
            )
            if path.endswith("/match"):  # a receipt's URL names its day and its supplier
                path += f"?on={place['received_on']}&supplier={place['supplier_id']}"
            paths.append(re.sub(r"\{id\}", str(asked.id) if room == "approvals" else ids.get(room, ""), path))
    return paths
