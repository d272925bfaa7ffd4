"""What `heliograph up` creates on its first start: an organization that can send at once, with simulated suppliers.

Every step checks what exists, so a start that was killed half way can simply be repeated. The keys' secrets are not in
the database but in a file in the data directory, and a key whose secret is lost is replaced.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from heliograph.accounts import organizations, quota
from heliograph.accounts.api_keys import issued, lifecycle
from heliograph.base.actor import SYSTEM, Actor
from heliograph.base.crypto import hash_secret
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.demo.credentials import Credentials, Graph, Smsc
from heliograph.people import links, memberships, users
from heliograph.people.operators import accounts as operators
from heliograph.simulators.graph.simulator import GraphOptions
from heliograph.sms.accepting import sender_ids
from heliograph.sms.dispatch import routing, suppliers
from heliograph.whatsapp.mirror import accounts, apps
from heliograph.whatsapp.money import rates, wallet
from heliograph.whatsapp.money.rates import Rate

ORGANIZATION = "Demo organization"
SENDER = "HELIOGRAPH"
#: The country by which national numbers are interpreted.
COUNTRY = "MZ"
#: The organization's owner, who signs in to the dashboard by a single-use link.
OWNER, OWNER_NAME = "owner@example.com", "Demo owner"
#: The installation's operator, until there is another, who signs in to the console by a single-use link.
ROOT, ROOT_NAME = "operator@example.com", "Operator"
QUOTA = 1_000_000
SUPPLIER = "simulator"
#: The default account of the simulated Cloud API.
CLOUD = GraphOptions()
#: The price of a delivered WhatsApp message here, in millionths, and the wallet's initial balance: 1,000 units.
CURRENCY = "EUR"
PRICES = (("utility", 20_000), ("authentication", 30_000), ("service", 20_000))
BALANCE = 1_000_000_000
SINCE = datetime(2025, 1, 1, tzinfo=UTC)
#: The window size: the simulator is on this machine, and accepts everything.
WINDOW = 500


async def ensure(
    conn: Connection, settings: Settings, *, smsc: Smsc, known: Credentials | None
) -> tuple[UUID, str, str]:
    """Create organization, sender, quota, keys and supplier, if they are missing.

    `known`: the credentials of an earlier start. Returns (organization id, live key, test key).
    """
    async with conn.transaction():
        everyone = await organizations.list_all(conn)
        # Its people may have renamed it.
        listed = [one for one in everyone if known is not None and str(one.id) == known.organization_id]
        listed = listed or [one for one in everyone if one.name == ORGANIZATION]
        organization = (
            listed[-1]
            if listed
            else await organizations.create(
                conn, name=ORGANIZATION, state="active", country=COUNTRY, allowed_countries=None
            )
        )
        operator = Actor(organization.id, None, "live", frozenset(), organization.state)
        if not listed:
            await quota.grant(conn, organization.id, amount=QUOTA, reason="demo")
        senders = {sender.value: sender for sender in await sender_ids.list_all(conn, operator)}
        if SENDER not in senders:
            requested = await sender_ids.request(conn, operator, value=SENDER)
            await sender_ids.review(conn, operator, id=requested.id, status="approved")
        live = await _key(conn, operator, "live", known.live_key if known else "")
        test = await _key(conn, operator, "test", known.test_key if known else "")
        await _supplier(conn, settings, smsc)
    return organization.id, live, test


async def operators_link(conn: Connection) -> str | None:
    """A single-use token for setting up the first operator; None: there is an operator with a second factor."""
    if any(one.has_factor for one in await operators.list_all(conn)):
        return None
    async with conn.transaction():
        user, _ = await users.ensure(conn, SYSTEM, email=ROOT, name=ROOT_NAME)
        await operators.add(conn, SYSTEM, user_id=user.id, email=user.email, role="root")
        return await links.make(conn, SYSTEM, user_id=user.id, realm="console")


async def owners_link(conn: Connection, organization_id: UUID) -> str | None:
    """A single-use token that signs in the demo organization's owner; None: they have chosen a password."""
    operator = Actor(organization_id, None, "live", frozenset(), "active")
    async with conn.transaction():
        owner, _ = await users.ensure(conn, operator, email=OWNER, name=OWNER_NAME)
        if owner.has_password:
            return None
        await memberships.add(conn, operator, user_id=owner.id, role="owner")
        return await links.make(conn, operator, user_id=owner.id)


KEY_WORKS = """
SELECT EXISTS (SELECT FROM api_keys WHERE organization_id = $1 AND secret_hash = $2 AND status = 'active')
"""


APP_KNOWN = "SELECT EXISTS (SELECT FROM whatsapp_apps WHERE app_id = $1)"
PRICED = "SELECT EXISTS (SELECT FROM whatsapp_rates WHERE currency = $1)"


async def _key(conn: Connection, operator: Actor, mode: str, secret: str) -> str:
    if secret and await conn.fetchval(KEY_WORKS, operator.organization_id, hash_secret(secret)):
        return secret
    name = f"demo {mode}"
    for key in await issued.list_all(conn, operator):
        if key.name == name and key.status == "active":
            await lifecycle.revoke(conn, operator, id=key.id)
    _, secret = await lifecycle.issue(conn, operator, name=name, profile="full_access", mode=mode)
    return secret


async def _supplier(conn: Connection, settings: Settings, smsc: Smsc) -> None:
    key = suppliers.seal_key(settings)
    values = {
        "host": smsc.host,
        "port": smsc.port,
        "system_id": smsc.system_id,
        "tls": False,
        "window": WINDOW,
        "reconnect_seconds": 0.2,
        "reconnect_max_seconds": 2.0,
    }
    known = await routing.load(conn)
    row = next((one for one in known if one.simulated and one.name == SUPPLIER), None)
    if row is None:
        # Somebody who has added a supplier and removed the simulator no longer needs it.
        if not known:
            await suppliers.add(
                conn, key, name=SUPPLIER, kind="smpp", settings=values, secret=smsc.password, simulated=True
            )
    elif row.settings != values:
        await suppliers.reconfigure(conn, key, id=row.id, settings=values, secret=smsc.password)


async def ensure_whatsapp(conn: Connection, settings: Settings, organization_id: UUID, graph: Graph) -> UUID:
    """Create the simulator's account, a wallet and prices, if they are missing or an earlier start created them
    otherwise.

    Returns the id of the app, which is the end of its callback address. The mirror fetches number and templates, once
    the simulator answers.
    """
    operator = Actor(organization_id, None, "live", frozenset(), "active")
    async with conn.transaction():
        known = [one.waba_id for one in await accounts.list_all(conn, organization_id)]
        if await conn.fetchval(APP_KNOWN, CLOUD.app_id):
            await apps.change_app(
                conn,
                apps.seal_key(settings),
                app_id=CLOUD.app_id,
                app_secret=graph.app_secret,
                verify_token=graph.verify_token,
                keep_old=0.0,
            )
        if CLOUD.waba not in known:
            await _add_account(conn, settings, organization_id, graph)
        account = next(one for one in await accounts.list_all(conn, organization_id) if one.waba_id == CLOUD.waba)
        key, base_url = apps.seal_key(settings), _base_url(graph)
        if (account.base_url, accounts.open_token(key, account.id, account.token)) != (base_url, graph.token):
            await accounts.update(
                conn, key, organization_id=organization_id, account_id=account.id, token=graph.token, base_url=base_url
            )
        if not await conn.fetchval(PRICED, CURRENCY):
            await rates.import_rates(
                conn, [Rate(CURRENCY, name, rates.ELSEWHERE, SINCE, price) for name, price in PRICES]
            )
        if (await wallet.show(conn, operator)).total == 0:
            await wallet.top_up(conn, organization_id, amount=BALANCE, currency=CURRENCY, reason="demo")
    return account.app


async def _add_account(conn: Connection, settings: Settings, organization_id: UUID, graph: Graph) -> None:
    await accounts.add(
        conn,
        apps.seal_key(settings),
        organization_id=organization_id,
        app_id=CLOUD.app_id,
        app_secret=graph.app_secret,
        verify_token=graph.verify_token,
        waba_id=CLOUD.waba,
        token=graph.token,
        currency=CURRENCY,
        base_url=_base_url(graph),
        name="simulator",
    )


def _base_url(graph: Graph) -> str:
    return f"http://{graph.host}:{graph.port}"


NUMBER = """
SELECT n.id::text FROM whatsapp_numbers n
 WHERE n.organization_id = $1 AND n.graph_id = $2 AND n.state = 'active'
   AND EXISTS (SELECT FROM whatsapp_templates t
                WHERE t.organization_id = $1 AND t.account_id = n.account_id AND t.status = 'approved')
"""


async def mirrored(conn: Connection, organization_id: UUID) -> str | None:
    """The id of the simulator's number here, once it and its templates have been fetched."""
    id: str | None = await conn.fetchval(NUMBER, organization_id, CLOUD.number_id)
    return id
