"""Keeps templates in sync with Meta: by events, by readings of one or all, and by refused sends.

Each facet of a template (status, category, quality, content) has the time of the newest report on it, so events have
the same result in any order, however often repeated. The time of a full reading is kept with the account.

The rule nobody may break: what an operator disabled stays disabled, whatever Meta says; a template that Meta no longer
lists becomes `removed`, but is never deleted, since messages refer to it.

It has over 400 lines because events, readings and refusals are merged into the same facets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph import notices
from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.notices import Notice
from heliograph.suppliers.whatsapp_cloud.bodies import layout
from heliograph.suppliers.whatsapp_cloud.callbacks.items import TemplateItem
from heliograph.suppliers.whatsapp_cloud.objects import CloudTemplate
from heliograph.webhooks.recording import events
from heliograph.webhooks.recording.events import Event
from heliograph.whatsapp import reads
from heliograph.whatsapp.mirror import qualities
from heliograph.whatsapp.mirror.facets import merge, quality
from heliograph.whatsapp.mirror.numbers import AGAIN, wake_mirror


class Changes(msgspec.Struct, frozen=True):
    """The changes of a reading that customers can see."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    #: Webhook deliveries queued.
    deliveries: int = 0


#: Meta's terms → ours. An unknown one does not permit sending.
STATUSES = {
    "APPROVED": "approved",
    "PENDING": "pending",
    "REJECTED": "rejected",
    "PAUSED": "paused",
    "DISABLED": "disabled",
    "IN_APPEAL": "in_appeal",
    "PENDING_DELETION": "removed",
    "DELETED": "removed",
    "LIMIT_EXCEEDED": "disabled",
    "LOCKED": "disabled",
    "ARCHIVED": "disabled",
}
#: Terms used only in events; FLAGGED and others not listed leave the status to the reading that follows.
EVENTS = {**STATUSES, "REINSTATED": "approved"}
CATEGORIES = {"UTILITY": "utility", "AUTHENTICATION": "authentication", "MARKETING": "marketing"}
REASONS = frozenset(
    {"ABUSIVE_CONTENT", "INCORRECT_CATEGORY", "INVALID_FORMAT", "PROMOTIONAL", "SCAM", "TAG_CONTENT_MISMATCH"}
)
#: How long a pause lasts, seconds: the second is twice as long as the first.
PAUSE, SECOND_PAUSE = 3 * 3600.0, 6 * 3600.0
#: A listing shows that a template is paused, but not since when: it is checked again after this, seconds.
LOOK = 1800.0
#: The parts of a template that are stored: examples contain Meta's URLs, flows its ids.
_PART = ("type", "format", "text", "add_security_recommendation", "code_expiration_minutes")
_BUTTON = ("type", "text", "url", "phone_number", "otp_type")

# All code locks the account's row before those of its templates.
_ROW = (
    "id, account_id, graph_id, name, language, category, status, parameter_format, parameter_count, components,"
    " body_preview, quality, rejection_reason, ttl_seconds, held_until, disabled_locally, applied, applied_at,"
    " reread_at, missing_at, updated_at"
)
_COLUMNS = _ROW.split(", ")
# Removed ones are kept for good, and stay as they are unless they are listed.
OF_ACCOUNT = f"""
SELECT {_ROW} FROM whatsapp_templates
 WHERE organization_id = $1 AND account_id = $2
   AND (status <> 'removed' OR missing_at IS NOT NULL
        OR (name, language) IN (SELECT * FROM unnest($3::text[], $4::text[])))
 ORDER BY id FOR NO KEY UPDATE
"""
# The template that an event names by its id, or one that has its name under another id.
BY_EVENT = f"""
SELECT item.n, found.* FROM unnest($3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS item (id, name, language, n)
       CROSS JOIN LATERAL (
       SELECT {_ROW} FROM whatsapp_templates
        WHERE organization_id = $1 AND account_id = $2
          AND (graph_id = item.id OR name = item.name AND language = item.language)
        ORDER BY graph_id = item.id DESC LIMIT 1 FOR NO KEY UPDATE) found
"""
BY_ID = f"SELECT {_ROW} FROM whatsapp_templates WHERE organization_id = $1 AND id = $2 FOR NO KEY UPDATE"
ACCOUNT = "SELECT account_id FROM whatsapp_templates WHERE organization_id = $1 AND id = $2"
DOUBT = """
UPDATE whatsapp_templates SET missing_at = now(), reread_at = least(reread_at, now() + make_interval(secs => $3))
 WHERE organization_id = $1 AND id = $2 AND status <> 'removed' AND missing_at IS NULL
"""


async def apply_items(
    conn: Connection, organization_id: UUID, account_id: UUID, items: Sequence[tuple[TemplateItem, datetime]]
) -> int:
    """Apply events of one account, in order; returns the number of deliveries queued. Beside each: its arrival, the
    latest possible time of the event.

    An event about an unknown template, or older than the known state, changes nothing; either way, the template is read
    from Meta a little later. Until then, messages wait for one that was approved under another id.
    """
    async with conn.transaction():
        known = await wake_mirror(conn, organization_id, account_id)
        if known is None:
            return 0
        names = [(item.template_id, item.name, item.language) for item, _ in items]
        found = await conn.fetch(BY_EVENT, organization_id, account_id, *zip(*names, strict=True))
        ids = {row["n"] - 1: row["id"] for row in found}
        # Many changes of one template have one result, and one event for customers.
        pairs = {row["id"]: (row, {name: row[name] for name in _COLUMNS}) for row in found}
        unknown = False
        for n, (item, at) in enumerate(items):
            row = pairs[ids[n]][1] if n in ids else None
            if row is None or row["graph_id"] != item.template_id:
                unknown = True
            if row is not None:
                _hear(row, item, at, known[1])
        if unknown:
            await wake_mirror(conn, organization_id, account_id, templates=True)
        latest = max(at for _, at in items)
        return await events.record(conn, await _write(conn, organization_id, list(pairs.values()), latest))


def _hear(row: dict[str, Any], item: TemplateItem, at: datetime, read_at: datetime | None) -> None:
    """Update a row from an event. `at`: its arrival; `read_at`: when all templates were read."""
    when = min(item.at or at, at)
    status = EVENTS.get(item.event or "")
    if row["graph_id"] != item.template_id:
        # A recreated template has another id: the end of the old one does not concern it.
        if status == "removed":
            return
        if status == "approved":
            # The stored content is the old one's, with whose parameters Meta might refuse each message.
            if row["status"] != "removed" and row["missing_at"] is None:
                again = at + timedelta(seconds=AGAIN)
                row["missing_at"], row["reread_at"] = at, min(row["reread_at"] or again, again)
            return
    category = CATEGORIES.get(item.category or "")
    if item.kind == "status" and status is not None:
        merge(row, "status", when, read_at, _status(status, item.reason, _pause(item, when)), alone=True)
    # An advance notice does not change the category in force.
    if category is not None and item.future_category in (None, item.category):
        # Within the same second, an event about the category itself outweighs one that only mentions it.
        said_at = when if item.kind == "category" else when - timedelta(microseconds=1)
        merge(row, "category", said_at, read_at, {"category": category}, alone=True)
    if item.kind == "quality":
        merge(row, "quality", when, read_at, {"quality": quality(item.quality)}, alone=True)
    row["reread_at"] = at + timedelta(seconds=AGAIN)


async def hold(
    conn: Connection,
    organization_id: UUID,
    template_id: UUID,
    *,
    seconds: float,
    status: str = "paused",
    at: datetime | None = None,
) -> int:
    """Meta refused a message because of the template's state: record the state, unless something newer is known, and
    reread the template soon. `at`: when a status reported the refusal; None: now.

    A paused template is checked again `seconds` after that. Returns the number of deliveries queued.
    """
    account_id = await conn.fetchval(ACCOUNT, organization_id, template_id)
    if account_id is None:
        return 0
    async with conn.transaction():
        known = await wake_mirror(conn, organization_id, account_id)
        if known is None:
            return 0
        found = await conn.fetchrow(BY_ID, organization_id, template_id)
        if found is None or found["status"] == "removed":
            return 0
        row = dict(found)
        now = clock.now()
        when = now if at is None else min(at, now)
        held_until = when + timedelta(seconds=seconds) if status == "paused" else None
        read_at = None if at is None else known[1]
        merge(row, "status", when, read_at, _status(status, None, held_until), alone=True)
        row["reread_at"] = now + timedelta(seconds=AGAIN)
        return await events.record(conn, await _write(conn, organization_id, [(found, row)], now))


async def doubt(conn: Connection, organization_id: UUID, template_id: UUID) -> None:
    """Meta refused a send because it knows no such template. As if a listing lacked it, its messages wait until Meta
    has been asked for it, after LAG."""
    account_id = await conn.fetchval(ACCOUNT, organization_id, template_id)
    if account_id is None:
        return
    async with conn.transaction():
        if await wake_mirror(conn, organization_id, account_id) is not None:
            await conn.execute(DOUBT, organization_id, template_id, AGAIN)


#: Statuses in which a template can no longer be sent; they cause a notice.
TOLD = ("rejected", "paused", "disabled")

INSERT = """
INSERT INTO whatsapp_templates (organization_id, account_id, id, graph_id, name, language, category, status,
    parameter_format, parameter_count, components, body_preview, quality, rejection_reason, ttl_seconds, held_until,
    created_at, updated_at)
SELECT $1, $2, one.*, $3, $3
  FROM unnest($4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::int[],
              $12::text[]::jsonb[], $13::text[], $14::text[], $15::text[], $16::int[], $17::timestamptz[]) one
"""
# A full reading replaces individual ones that were due. The end of a pause is checked when due.
COVERED = """
UPDATE whatsapp_templates
   SET reread_at = CASE status WHEN 'paused' THEN held_until + make_interval(secs => $4) END
 WHERE organization_id = $1 AND account_id = $2 AND (reread_at <= $3 OR reread_at IS NULL AND status = 'paused')
"""


async def store_listing(
    conn: Connection,
    organization_id: UUID,
    account_id: UUID,
    listing: Sequence[CloudTemplate],
    *,
    at: datetime,
    asked_at: datetime,
    quiet: bool = False,
    asked: Mapping[UUID, CloudTemplate | None] | None = None,
) -> Changes:
    """Update all of an account's templates from a full listing.

    A missing template gets the result of its individual look-up (`asked`, by our id; None: gone); without an answer it
    stays unchanged but held: a listing may be incomplete. The caller has locked the account. `at`: the time that the
    listing reflects; `asked_at`: when it began; `quiet`: no events, for the first reading of an account.
    """
    now = clock.now()
    asked = asked or {}
    listed = _by_name(listing)
    names = [name for name, _ in listed], [language for _, language in listed]
    known = await conn.fetch(OF_ACCOUNT, organization_id, account_id, *names)
    rows = {(row["name"], row["language"]): row for row in known}
    pairs = []
    for key, found in rows.items():
        row = dict(found)
        if one := listed.get(key) or asked.get(row["id"]):
            _read(row, one, at, alone=False)
        elif row["id"] in asked or row["status"] == "removed":
            merge(row, "status", at, None, _status("removed", None, None), alone=False)
            row["missing_at"] = None
        else:
            row["missing_at"] = row["missing_at"] or now
        pairs.append((found, row))
    new = [_new(one, now) for key, one in listed.items() if key not in rows]
    if new:
        columns = [[row[name] for row in new] for name in _NEW]
        await conn.execute(INSERT, organization_id, account_id, now, *columns)
    raised = await _write(conn, organization_id, pairs, now)
    await conn.execute(COVERED, organization_id, account_id, asked_at, AGAIN)
    came = [row for row in new if row["status"] != "removed"]
    gone = sum(1 for old, row in pairs if row["status"] == "removed" and old["status"] != "removed")
    changed = sum(1 for old, row in pairs if row["updated_at"] != old["updated_at"])
    if quiet:
        return Changes(len(came), changed - gone, gone)
    raised += [_event(organization_id, row, now) for row in came]
    return Changes(len(came), changed - gone, gone, await events.record(conn, raised))


def _by_name(listing: Iterable[CloudTemplate]) -> dict[tuple[str, str], CloudTemplate]:
    """The listed templates by name and language. A deleted one stays in the list for a while, alongside one that was
    recreated under its name, in either order."""
    found: dict[tuple[str, str], CloudTemplate] = {}
    for one in listing:
        if STATUSES.get(one.status) != "removed" or (one.name, one.language) not in found:
            found[one.name, one.language] = one
    return found


async def store_one(
    conn: Connection, organization_id: UUID, template_id: UUID, one: CloudTemplate | None, *, at: datetime
) -> Changes:
    """Update one template from an individual reading; None: Meta shows none, which counts only after all are read. The
    caller has locked the account."""
    now = clock.now()
    found = await conn.fetchrow(BY_ID, organization_id, template_id)
    if found is None:
        return Changes()
    row = dict(found)
    if one is None:
        # A credential that sees nothing gets the same answer for everything. The next listing, soon, decides.
        if row["status"] != "removed":
            row["missing_at"] = row["missing_at"] or now
            await wake_mirror(conn, organization_id, row["account_id"], templates=True, after=0.0)
    else:
        _read(row, one, at, alone=True)
    paused = row["status"] == "paused" and row["held_until"] is not None
    row["reread_at"] = max(row["held_until"], now) + timedelta(seconds=AGAIN) if paused else None
    raised = await _write(conn, organization_id, [(found, row)], now)
    changed = int(row["updated_at"] != found["updated_at"])
    gone = int(row["status"] == "removed" and found["status"] != "removed")
    return Changes(0, changed - gone, gone, await events.record(conn, raised))


SET_LOCAL = f"""
UPDATE whatsapp_templates SET disabled_locally = $3, updated_at = $4
 WHERE organization_id = $1 AND id = $2 AND disabled_locally <> $3
RETURNING {_ROW}
"""


async def set_disabled(
    conn: Connection, organization_id: UUID, template_id: UUID, *, disabled: bool, by: Principal = SYSTEM
) -> bool:
    """An operator disables or enables a template; True if that changed something. Raises NotFound.

    For customers, a disabled template is `disabled` in the event and absent from listings; sends of it are refused, and
    waiting ones fail.
    """
    async with conn.transaction():
        if await conn.fetchval(ACCOUNT, organization_id, template_id) is None:
            raise NotFound("There is no such template.", id=str(template_id))
        at = clock.now()
        row = await conn.fetchrow(SET_LOCAL, organization_id, template_id, disabled, at)
        if row is None:
            return False
        await audit.record(
            conn,
            by,
            "whatsapp_template.changed",
            object_id=template_id,
            name=row["name"],
            organization_id=organization_id,
            before={"disabled": not disabled},
            after={"disabled": disabled},
        )
        told = {**row, "status": "disabled"} if disabled else dict(row)
        if row["status"] != "removed":
            await events.record(conn, [_event(organization_id, told, at)])
        return True


def shown(row: Mapping[str, Any]) -> dict[str, object]:
    """The template as customers see it, as in listings. `row`: a row of the table, or the part needed here."""
    return {
        "id": str(row["id"]),
        "name": row["name"],
        "language": row["language"],
        "category": row["category"],
        "status": row["status"],
        "sendable": reads.sendable(row),
        "parameterCount": row["parameter_count"],
        "bodyPreview": row["body_preview"],
        "components": msgspec.to_builtins(reads.parts(msgspec.json.decode(row["components"]))),
        "rejectionReason": reads.reason(row["rejection_reason"]),
        "updatedAt": iso(row["updated_at"]),
    }


def _read(row: dict[str, Any], one: CloudTemplate, at: datetime, *, alone: bool) -> None:
    """Update a row from a reading; newer events take precedence."""
    row["missing_at"] = None
    if row["graph_id"] != one.id:
        # It was deleted and recreated: reports on the old one no longer apply.
        row["graph_id"], row["applied"] = one.id, "{}"
    content = _content(one)
    if msgspec.json.decode(row["components"]) == msgspec.json.decode(content["components"]):
        content["components"] = row["components"]  # the database formats the same JSON differently
    status = STATUSES.get(one.status, "disabled")
    held_until = None
    if status == "paused":
        # An event or a refusal tells how long; a listing does not.
        known = row["held_until"]
        held_until = known if known is not None and known > at else at + timedelta(seconds=LOOK)
    for facet, values in (
        ("content", content),
        ("category", {"category": _category(one)}),
        ("quality", {"quality": quality(one.quality)}),
        ("status", _status(status, one.rejected_reason, held_until)),
    ):
        merge(row, facet, at, None, values, alone=alone)


_FACETS = (
    "category",
    "status",
    "parameter_format",
    "parameter_count",
    "components",
    "body_preview",
    "quality",
    "rejection_reason",
    "ttl_seconds",
    "held_until",
)
_NEW = ("id", "graph_id", "name", "language", *_FACETS)
_WRITTEN = ("graph_id", *_FACETS, "applied", "applied_at", "reread_at", "missing_at", "updated_at")
WRITE = """
UPDATE whatsapp_templates
   SET graph_id = $3, category = $4, status = $5, parameter_format = $6, parameter_count = $7,
       components = $8::text::jsonb,
       edited_at = CASE WHEN components = $8::text::jsonb THEN edited_at ELSE $18 END,
       body_preview = $9, quality = $10, rejection_reason = $11, ttl_seconds = $12,
       held_until = $13, applied = $14::text::jsonb, applied_at = $15, reread_at = $16, missing_at = $17,
       updated_at = $18
 WHERE organization_id = $1 AND id = $2
"""


def _new(one: CloudTemplate, at: datetime) -> dict[str, Any]:
    status = STATUSES.get(one.status, "disabled")
    row = {
        "id": uuid7(),
        "graph_id": one.id,
        "name": one.name,
        "language": one.language,
        "category": _category(one),
        "quality": quality(one.quality),
        "updated_at": at,
        **_content(one),
        **_status(status, one.rejected_reason, at + timedelta(seconds=LOOK) if status == "paused" else None),
    }
    return _counted(row)


def _content(one: CloudTemplate) -> dict[str, Any]:
    parts = kept(one.components)
    made = layout(parts, one.parameter_format, one.category)
    return {
        "components": msgspec.json.encode(parts).decode(),
        "parameter_format": "NAMED" if made.named else "POSITIONAL",
        "body_preview": made.body_preview,
        "ttl_seconds": one.ttl_seconds,
    }


def kept(components: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The parts of a template that are stored and shown to customers: nothing that leads to Meta."""
    parts = []
    for component in components:
        part = {name: component[name] for name in _PART if name in component}
        buttons = component.get("buttons")
        if isinstance(buttons, list):
            part["buttons"] = [
                {name: button[name] for name in _BUTTON if name in button}
                for button in buttons
                if isinstance(button, Mapping)
            ]
        parts.append(part)
    return parts


def _status(status: str, reason: str | None, held_until: datetime | None) -> dict[str, Any]:
    told = None
    if status == "rejected" and reason not in (None, "NONE"):
        told = reason.lower() if reason in REASONS else "other"
    return {"status": status, "rejection_reason": told, "held_until": held_until}


def _pause(item: TemplateItem, at: datetime) -> datetime | None:
    if item.event != "PAUSED":
        return None
    return at + timedelta(seconds=SECOND_PAUSE if item.pause == "SECOND_PAUSE" else PAUSE)


def _category(one: CloudTemplate) -> str:
    # An unknown category is not sent, like marketing.
    return CATEGORIES.get(one.category, "marketing")


def _counted(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its number of parameters, derived from its parts and its category."""
    parts = msgspec.json.decode(row["components"])
    row["parameter_count"] = layout(parts, row["parameter_format"], row["category"]).parameter_count
    return row


_Pair = tuple[Any, dict[str, Any]]


async def _write(conn: Connection, organization_id: UUID, pairs: Sequence[_Pair], at: datetime) -> list[Event]:
    """Store the changed ones of the pairs (current row, new row); returns events for the changes visible to customers.

    Changes of a template that customers do not see raise no events.
    """
    stored, raised, told, noted = [], [], [], []
    for old, row in pairs:
        if all(row[name] == old[name] for name in row):
            continue
        _counted(row)
        if shown(old) != shown(row):
            row["updated_at"] = at
            if not row["disabled_locally"]:
                raised.append(_event(organization_id, row, at))
                if row["status"] != old["status"] and row["status"] in TOLD:
                    told.append(Notice(organization_id, f"template.{row['status']}", str(row["id"]), row["name"]))
                # Staged messages of campaigns wait, and single messages fail.
                if row["category"] != old["category"] and row["category"] == "marketing":
                    told.append(Notice(organization_id, "template.marketing", str(row["id"]), row["name"]))
        if row["quality"] != old["quality"]:
            noted.append(qualities.QualityNote(row["id"], row["quality"].lower()))
        stored.append((organization_id, row["id"], *(row[name] for name in _WRITTEN)))
    if stored:
        await conn.executemany(WRITE, stored)
        await notices.record_many(conn, [one for one in told if one.kind != "template.rejected"])
        # Somebody has submitted them again since the last time.
        await notices.record_many(conn, [one for one in told if one.kind == "template.rejected"], quiet=None)
        await qualities.note(conn, organization_id, noted, at)
    return raised


def _event(organization_id: UUID, row: Mapping[str, Any], at: datetime) -> Event:
    data = msgspec.json.encode({"template": shown(row)}).decode()
    return Event(organization_id, uuid7(), "whatsapp.template.updated", str(uuid7()), data, at)
