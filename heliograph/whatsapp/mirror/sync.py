"""Syncs an account: reads numbers, health, credential and templates from Meta, and stores them.

Reading takes as long as Meta needs, so no database connection is held meanwhile. The result is stored in one
transaction, with its events.

The rule nobody may break: a failed reading changes nothing; it only records why. Anything learned during a reading is
newer than the reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import retry
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.suppliers.whatsapp_cloud.credential import Credential, app_credential, credential
from heliograph.suppliers.whatsapp_cloud.errors import Kind
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient, CloudError
from heliograph.suppliers.whatsapp_cloud.objects import CloudAccount, CloudNumber, CloudTemplate, credential_state
from heliograph.whatsapp.mirror import numbers, template_sync
from heliograph.whatsapp.mirror.accounts import INVALID
from heliograph.whatsapp.mirror.apps import App
from heliograph.whatsapp.mirror.facets import is_newer
from heliograph.whatsapp.mirror.numbers import LAG

#: Graph's error for an object that is gone, or never existed for this credential: code and subcode.
GONE = frozenset({"100/33", "33"})
#: Numbers and their health are read again after the first interval, all templates after the second; seconds, ±25 %.
NUMBERS_EVERY, TEMPLATES_EVERY = 600.0, 1800.0
#: Seconds after which a credential that was refused during a reading is probed with one message.
HELD = 60.0
#: The reason of its hold.
REFUSED = "credential"
#: Maximum objects missing from a listing that are looked up individually in one reading.
MOST_MISSING = 20
#: How long a reading waits before one call as Meta advises, and before all of them, seconds: one that takes too long is
#: aborted, and all its calls were in vain (`reading.LONGEST`).
LONGEST_WAIT, ALL_WAITS = 60.0, 120.0
_DETAIL = 500


class Reading(msgspec.Struct, kw_only=True):
    """A reading. None: not requested, or no answer; see `problems`."""

    asked_at: datetime
    #: ok, expiring, missing_scope, invalid or unknown; what is wrong; when it expires.
    credential: str | None = None
    credential_detail: str = ""
    expires_at: datetime | None = None
    #: Whether Meta refused this credential during the reading.
    refused: bool = False
    numbers: list[CloudNumber] | None = None
    account: CloudAccount | None = None
    #: Whether our app gets the account's callbacks.
    subscribed: bool | None = None
    templates: list[CloudTemplate] | None = None
    #: Single templates by our id; None: gone.
    single: dict[UUID, CloudTemplate | None] = {}
    #: Numbers missing from the listing that were looked up individually, by Meta's id; None: gone.
    single_numbers: dict[str, CloudNumber | None] = {}
    #: "numbers: 190 …", for operators.
    problems: list[str] = []
    #: For how long it has waited as Meta advised, seconds.
    waited: float = 0.0

    @property
    def at(self) -> datetime:
        """The time that the reading reflects: Meta's readings may lag behind its events."""
        return self.asked_at - timedelta(seconds=LAG)


class Known(msgspec.Struct, frozen=True):
    """The known objects of an account: those missing from a listing are looked up individually before they count as
    gone."""

    #: Meta's ids of active numbers.
    numbers: Sequence[str] = ()
    #: Meta's id, name and language of templates that are not removed, by our id.
    templates: Mapping[UUID, tuple[str, str, str]] = {}


NOTHING = Known()


class Changed(msgspec.Struct, frozen=True):
    """The result of storing a reading."""

    numbers: int = 0
    #: Numbers that the account no longer has.
    lost_numbers: int = 0
    templates: template_sync.Changes = template_sync.Changes()
    deliveries: int = 0
    #: Meta's ids of numbers that it has, and that another account has here.
    taken: Sequence[str] = ()


async def read(
    client: CloudClient,
    waba_id: str,
    token: str,
    app: App,
    *,
    numbers: bool = True,
    templates: bool = True,
    single: Mapping[UUID, str] | None = None,
    known: Known = NOTHING,
) -> Reading:
    """Read from Meta. Errors from Meta do not raise. `single`: templates to read individually, our id → Meta's."""
    shown = credential(token, app.secret)
    found = Reading(asked_at=clock.now(), problems=[], single={}, single_numbers={})
    if numbers:
        await _credential(found, client, waba_id, token, app)
        await _numbers(found, client, waba_id, shown, app)
        if found.numbers is not None:
            await _missing_numbers(found, client, shown, known)
    if templates:
        try:
            await _slowly(found, client, token)
            found.templates = await client.templates(waba_id, shown)
        except CloudError as error:
            _note(found, "templates", error)
    asked = dict(single or {})
    if found.templates is not None:
        # A lost page must not remove a template, and with it the messages waiting for it.
        listed = {(one.name, one.language) for one in found.templates}
        missing = {id: graph for id, (graph, *named) in known.templates.items() if tuple(named) not in listed}
        if len(missing) > MOST_MISSING:
            found.problems.append(f"templates: {len(missing)} known ones are not listed; looking up some at a time")
        asked = dict(list(missing.items())[:MOST_MISSING])
    for id, graph_id in asked.items():
        try:
            await _slowly(found, client, token)
            found.single[id] = await client.template(graph_id, shown)
        except CloudError as error:
            # With a credential that sees nothing at all, everything looks gone: this counts only together with a
            # listing.
            if error.code in GONE:
                found.single[id] = None
            else:
                _note(found, "template", error)
    return found


async def _credential(found: Reading, client: CloudClient, waba_id: str, token: str, app: App) -> None:
    try:
        await _slowly(found, client, token)
        report = await client.debug_token(token, by=app_credential(app.app_id, app.secret))
    except CloudError as error:
        found.problems.append(f"credential: {error.code} {error.detail}".strip()[:_DETAIL])
        # Errors at Meta change nothing. A refusal concerns the app's own credential, and says nothing about the token.
        if error.fault is not None and (error.fault.kind is Kind.AUTH or not error.fault.waits):
            found.credential = "unknown"
            found.credential_detail = f"it could not be checked: {error.code} {error.detail}"[:_DETAIL]
        return
    found.credential, found.credential_detail = credential_state(report, waba_id, clock.now())
    found.expires_at = report.expires_at


async def _numbers(found: Reading, client: CloudClient, waba_id: str, shown: Credential, app: App) -> None:
    try:
        await _slowly(found, client, shown.token)
        found.numbers = await client.phone_numbers(waba_id, shown)
    except CloudError as error:
        _note(found, "numbers", error)
        return
    try:
        await _slowly(found, client, shown.token)
        found.account = await client.account(waba_id, shown)
    except CloudError as error:
        _note(found, "account", error)
    try:
        await _slowly(found, client, shown.token)
        found.subscribed = app.app_id in await client.subscribed_apps(waba_id, shown)
    except CloudError as error:
        _note(found, "subscription", error)


async def _missing_numbers(found: Reading, client: CloudClient, shown: Credential, known: Known) -> None:
    listed = {one.id for one in found.numbers or ()}
    for graph_id in [one for one in known.numbers if one not in listed][:MOST_MISSING]:
        try:
            await _slowly(found, client, shown.token)
            found.single_numbers[graph_id] = await client.phone_number(graph_id, shown)
        except CloudError as error:
            if error.code in GONE:
                found.single_numbers[graph_id] = None
            else:
                _note(found, "number", error)


async def _slowly(found: Reading, client: CloudClient, token: str) -> None:
    """Wait as Meta's usage headers advise, within limits; the mirror handles longer waits."""
    pause = wait_of(client.pause(token), found.waited)
    if pause > 0:
        found.waited += pause
        await asyncio.sleep(pause)


def wait_of(advised: float, waited: float) -> float:
    """Seconds to wait before a call, of those that Meta advises; `waited`: before earlier ones of the same reading."""
    return max(0.0, min(advised, LONGEST_WAIT, ALL_WAITS - waited))


def _note(found: Reading, what: str, error: CloudError) -> None:
    found.problems.append(f"{what}: {error.code} {error.detail}".strip()[:_DETAIL])
    fault = error.fault
    if fault is not None and fault.kind is Kind.AUTH and fault.code in INVALID:
        found.refused = True
        found.credential, found.credential_detail = "invalid", error.detail or error.code


ACCOUNT = """
SELECT id, waba_id, portfolio, state, credential_status, credential_checked_at, numbers_read_at, templates_read_at,
       failures, mirrored_at
  FROM whatsapp_accounts WHERE organization_id = $1 AND id = $2 FOR NO KEY UPDATE
"""
# A hold caused by the invalid credential ends with it: one message probes. A refusal says nothing about a hold that
# lasts longer, as in `dispatch.holds`. The check counts as of when it began: of two at once, the later one is right.
_UNTIL = "now() + make_interval(secs => $7)"
_PROBES = f"$6 AND (held_until >= {_UNTIL}) IS NOT TRUE OR $3 <> 'invalid' AND credential_status = 'invalid'"
CREDENTIAL = f"""
UPDATE whatsapp_accounts
   SET credential_status = $3, credential_detail = $4, credential_expires_at = $5, credential_checked_at = $8,
       held_until = CASE WHEN $3 <> 'invalid' AND credential_status = 'invalid' THEN least(held_until, now())
                         WHEN $6 THEN greatest(held_until, {_UNTIL}) ELSE held_until END,
       held_reason = CASE WHEN $6 AND (held_until > {_UNTIL}) IS NOT TRUE THEN '{REFUSED}' ELSE held_reason END,
       trying_id = CASE WHEN {_PROBES} THEN NULL ELSE trying_id END,
       trying_at = CASE WHEN {_PROBES} THEN NULL ELSE trying_at END
 WHERE organization_id = $1 AND id = $2
"""
NUMBERS_READ = """
UPDATE whatsapp_accounts
   SET numbers_read_at = $3, portfolio = coalesce($4, portfolio),
       name = CASE WHEN name = '' THEN coalesce($5, '') ELSE name END, subscribed = coalesce($6, subscribed)
 WHERE organization_id = $1 AND id = $2
"""
TEMPLATES_READ = "UPDATE whatsapp_accounts SET templates_read_at = $3 WHERE organization_id = $1 AND id = $2"
# Times that were not due stay, and times that an event advanced meanwhile are kept.
NEXT = """
UPDATE whatsapp_accounts
   SET numbers_at = CASE WHEN $3::timestamptz IS NULL OR numbers_at = $3 THEN now() + make_interval(secs => $4)
                         ELSE numbers_at END,
       templates_at = CASE WHEN $3 IS NULL OR templates_at = $3 THEN now() + make_interval(secs => $5)
                           ELSE templates_at END,
       mirrored_at = CASE WHEN $6 THEN mirrored_at ELSE now() END,
       failures = CASE WHEN $6 THEN failures + 1 ELSE 0 END, mirror_detail = $7
 WHERE organization_id = $1 AND id = $2
"""
# Individual templates that were due but got no answer.
LATER = """
UPDATE whatsapp_templates SET reread_at = now() + make_interval(secs => $3)
 WHERE organization_id = $1 AND account_id = $2 AND reread_at <= now()
"""
WAKE = """
UPDATE whatsapp_accounts a
   SET mirror_at = least(numbers_at, templates_at,
           (SELECT min(reread_at) FROM whatsapp_templates t WHERE t.organization_id = $1 AND t.account_id = $2
               AND t.reread_at IS NOT NULL))
 WHERE organization_id = $1 AND id = $2
"""


async def store(
    conn: Connection,
    organization_id: UUID,
    account_id: UUID,
    found: Reading,
    *,
    lease: datetime | None = None,
    spread: float = 1.0,
    stretch: float = 1.0,
) -> Changed:
    """Store a reading, and when the next one is due.

    `lease`: the value of the account's times set by its claim. `spread`: 0.75 to 1.25, so that accounts are not
    all due at once; `stretch`: 1 or more, growing with the share of Meta's budget used up.
    """
    async with conn.transaction():
        account = await conn.fetchrow(ACCOUNT, organization_id, account_id)
        if account is None or account["state"] == "removed":
            return Changed()
        ids = (organization_id, account_id)
        before = await numbers.of_account(conn, *ids)
        await _store_credential(conn, ids, account, found)
        problems, taken = list(found.problems), list[str]()
        if found.numbers is not None and is_newer(found.at, account["numbers_read_at"]):
            taken = await numbers.store_numbers(conn, *ids, found.numbers, at=found.at, asked=found.single_numbers)
            problems += [f"numbers: {graph_id} is in use by another account here" for graph_id in taken]
            known = found.account
            portfolio = known.portfolio_id if known is not None else None
            name = known.name if known is not None else None
            await conn.execute(NUMBERS_READ, *ids, found.at, portfolio, name, found.subscribed)
        first = account["numbers_read_at"] is None
        deliveries = 0 if first else await numbers.announce(conn, *ids, before)
        changed = await _store_templates(conn, ids, account, found)
        failed = bool(found.problems)
        backoff = retry.META_FIRST_SYNC if account["mirrored_at"] is None else retry.META_SYNC
        pause = backoff.pause(account["failures"]) * spread
        if failed:
            await conn.execute(LATER, *ids, pause)
        if failed or found.numbers is not None or found.templates is not None:
            next_numbers = pause if failed else NUMBERS_EVERY * spread
            next_templates = pause if found.templates is None else TEMPLATES_EVERY * spread
            detail = "; ".join(problems)[:_DETAIL]
            await conn.execute(NEXT, *ids, lease, next_numbers * stretch, next_templates * stretch, failed, detail)
        await conn.execute(WAKE, *ids)
        now = await numbers.of_account(conn, *ids)
        lost = len(before.keys() - now.keys())
        return Changed(_different(before, now), lost, changed, deliveries + changed.deliveries, taken)


# A number that an account has lost has usually moved to another one of its organization; one that it has got is
# released by the account that still has it here. In the order in which accounts are locked.
LOOK_ELSEWHERE = """
UPDATE whatsapp_accounts a SET numbers_at = now(), mirror_at = now()
  FROM (SELECT id FROM whatsapp_accounts
         WHERE id <> $2 AND state <> 'removed'
           AND ($3 AND organization_id = $1
                OR id IN (SELECT account_id FROM whatsapp_numbers WHERE graph_id = ANY ($4) AND state <> 'removed'))
         ORDER BY id FOR NO KEY UPDATE) other
 WHERE a.id = other.id
"""


async def wake_others(conn: Connection, organization_id: UUID, account_id: UUID, changed: Changed) -> None:
    """Have the accounts read at once between which and this one numbers have moved. After the commit of `store`."""
    if changed.lost_numbers or changed.taken:
        await conn.execute(LOOK_ELSEWHERE, organization_id, account_id, changed.lost_numbers > 0, changed.taken)


async def _store_credential(conn: Connection, ids: tuple[UUID, UUID], account: asyncpg.Record, found: Reading) -> None:
    """Store the check, unless something has been learned about the credential since the reading began."""
    if found.credential is None or not is_newer(found.asked_at, account["credential_checked_at"]):
        return
    if account["credential_status"] == "invalid" and found.credential != "invalid" and found.numbers is None:
        return  # a refused call outweighs a check of the token; only a successful reading outweighs the refusal
    await conn.execute(
        CREDENTIAL, *ids, found.credential, found.credential_detail[:_DETAIL], found.expires_at, found.refused, HELD,
        found.asked_at,
    )  # fmt: skip


async def _store_templates(
    conn: Connection, ids: tuple[UUID, UUID], account: asyncpg.Record, found: Reading
) -> template_sync.Changes:
    read_at = account["templates_read_at"]
    if found.templates is not None and is_newer(found.at, read_at):
        changes = await template_sync.store_listing(
            conn, *ids, found.templates, at=found.at, asked_at=found.asked_at, quiet=read_at is None,
            asked=found.single,
        )  # fmt: skip
        await conn.execute(TEMPLATES_READ, *ids, found.at)
        return changes
    single = [
        await template_sync.store_one(conn, ids[0], id, one, at=found.at) for id, one in sorted(found.single.items())
    ]
    return template_sync.Changes(
        0, sum(one.changed for one in single), sum(one.removed for one in single), sum(one.deliveries for one in single)
    )


def _different(before: Mapping[UUID, object], now: Mapping[UUID, object]) -> int:
    def visible(of: Mapping[UUID, object], id: UUID) -> object:
        row = of.get(id)
        return {**row, "lastCheckedAt": None} if isinstance(row, dict) else row

    return sum(1 for id in before.keys() | now.keys() if visible(before, id) != visible(now, id))


def problems_of(found: Reading) -> Sequence[str]:
    """The problems of a reading, for operators, one sentence each."""
    notes = list(found.problems)
    if found.credential not in (None, "ok", "unknown"):
        notes.append(f"credential: {found.credential_detail or found.credential}")
    if found.subscribed is False:
        notes.append("the app does not get this account's callbacks: subscribe it")
    for number in found.numbers or ():
        notes += [
            f"number {number.display}: {obstacle.entity.lower()} is {obstacle.state.lower()}"
            + (f" ({obstacle.detail})" if obstacle.detail else "")
            for obstacle in number.obstacles
        ]
    return notes
