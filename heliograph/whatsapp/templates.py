"""Templates, mirrored from Meta by readings and by events. Identity is account, name and language.

The rule nobody may break: what an operator disabled stays so whatever Meta says; and of two words on the same matter
the newer one stays, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import clock
from heliograph.base.actor import Actor
from heliograph.base.clock import iso
from heliograph.base.db import Connection, Pool, is_down
from heliograph.base.errors import Refusal
from heliograph.base.fresh import Fresh
from heliograph.base.ids import uuid7
from heliograph.suppliers.whatsapp_bodies import TemplateLayout, layout
from heliograph.webhooks import events
from heliograph.webhooks.events import Event
from heliograph.whatsapp.numbers import AGAIN, Number, wake_mirror


class TemplateNotFound(Refusal):
    """This WhatsApp number has no template of this name and language."""

    code, status = "whatsapp_template_not_found", 400


class TemplateParameterMismatch(Refusal):
    """The template takes another number of parameters."""

    code, status = "whatsapp_template_parameter_mismatch", 400


class TemplateNotApproved(Refusal):
    """This template is not approved at present."""

    code, status = "whatsapp_template_not_approved", 409


class Template(msgspec.Struct, frozen=True):
    """A template as far as sending needs it."""

    organization_id: UUID
    id: UUID
    account_id: UUID
    name: str
    language: str
    #: utility, authentication or marketing.
    category: str
    #: approved, pending, rejected, paused, disabled, in_appeal or removed. Only an approved one is sent.
    status: str
    parameter_count: int
    layout: TemplateLayout
    #: How long Meta tries to deliver, seconds; None: as long as its category allows.
    ttl_seconds: int | None
    disabled_locally: bool
    #: A paused one is looked at again then.
    held_until: datetime | None


_SENDING = """
t.organization_id, t.id, t.account_id, t.name, t.language, t.category, t.status, t.parameter_count, t.components,
t.parameter_format, t.ttl_seconds, t.disabled_locally, t.held_until
"""
LOAD = f"""
SELECT {_SENDING} FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[])
       AS asked (organization_id, account_id, name, language)
  JOIN whatsapp_templates t USING (organization_id, account_id, name, language)
"""
LOAD_BY_ID = f"""
SELECT {_SENDING} FROM unnest($1::uuid[], $2::uuid[]) AS asked (organization_id, id)
  JOIN whatsapp_templates t ON t.organization_id = asked.organization_id AND t.id = asked.id
"""

_Named = tuple[UUID, UUID, str, str]


class TemplateBook:
    """Templates as they were at most half a second ago."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._named: Fresh[_Named, Template] = Fresh(self._load_named, indivisible=is_down)
        self._by_id: Fresh[tuple[UUID, UUID], Template] = Fresh(self._load_by_id, indivisible=is_down)

    async def find(self, actor: Actor, number: Number, name: str, language: str) -> Template:
        """The template of the number's account. `language` is matched exactly, as Meta writes it (`en_US`).

        Raises TemplateNotFound, also for one that is disabled locally or gone from Meta. Its status is the caller's to
        judge; one that is not approved has been looked up just now.
        """
        key = (actor.organization_id, number.account_id, name, language)
        fresh, template = self._named.peek(key)
        if not fresh or template is None or template.status != "approved" or template.disabled_locally:
            template = await self._named.get(key, anew=True)
        if template is None or template.disabled_locally or template.status == "removed":
            raise TemplateNotFound(name=name, language=language)
        return template

    async def get(self, organization_id: UUID, template_id: UUID) -> Template | None:
        """The template by its id, whatever its state."""
        return await self._by_id.get((organization_id, template_id))

    async def _load_named(self, keys: Sequence[_Named]) -> dict[_Named, Template]:
        columns = [list(column) for column in zip(*keys, strict=True)]
        found = (_template(row) for row in await self._pool.fetch(LOAD, *columns))
        return {(one.organization_id, one.account_id, one.name, one.language): one for one in found}

    async def _load_by_id(self, keys: Sequence[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], Template]:
        columns = [list(column) for column in zip(*keys, strict=True)]
        found = (_template(row) for row in await self._pool.fetch(LOAD_BY_ID, *columns))
        return {(one.organization_id, one.id): one for one in found}


def _template(row: asyncpg.Record) -> Template:
    parts = msgspec.json.decode(row["components"])
    return Template(
        row["organization_id"],
        row["id"],
        row["account_id"],
        row["name"],
        row["language"],
        row["category"],
        row["status"],
        row["parameter_count"],
        layout(parts, row["parameter_format"], row["category"]),
        row["ttl_seconds"],
        row["disabled_locally"],
        row["held_until"],
    )


def shown(row: Mapping[str, Any]) -> dict[str, object]:
    """The record as customers see it. `row`: a row of the table, or its part of this."""
    return {
        "id": str(row["id"]),
        "name": row["name"],
        "language": row["language"],
        "category": row["category"],
        "status": row["status"],
        "parameterCount": row["parameter_count"],
        "bodyPreview": row["body_preview"],
        "components": msgspec.json.decode(row["components"]),
        "rejectionReason": row["rejection_reason"],
        "updatedAt": iso(row["updated_at"]),
    }


#: A row as it is kept, for `_changed` and `_write`.
_ROW = (
    "id, account_id, graph_id, name, language, category, status, parameter_format, parameter_count, components,"
    " body_preview, quality, rejection_reason, ttl_seconds, held_until, disabled_locally, applied, applied_at,"
    " reread_at, updated_at"
)
LOCK = f"SELECT {_ROW} FROM whatsapp_templates WHERE organization_id = $1 AND id = $2 FOR NO KEY UPDATE"
ACCOUNT = "SELECT account_id FROM whatsapp_templates WHERE organization_id = $1 AND id = $2"
WRITE = """
UPDATE whatsapp_templates
   SET graph_id = $3, category = $4, status = $5, parameter_format = $6, parameter_count = $7,
       components = $8::text::jsonb, body_preview = $9, quality = $10, rejection_reason = $11, ttl_seconds = $12,
       held_until = $13, applied = $14::text::jsonb, applied_at = $15, reread_at = $16, updated_at = $17
 WHERE organization_id = $1 AND id = $2
"""


async def hold(
    conn: Connection, organization_id: UUID, template_id: UUID, *, seconds: float, status: str = "paused"
) -> int:
    """Meta refused a send for the template's state: it has this one now, and is read again soon.

    A paused one is looked at again after `seconds`. Returns the deliveries queued.
    """
    account_id = await conn.fetchval(ACCOUNT, organization_id, template_id)
    if account_id is None:
        return 0
    async with conn.transaction():
        if await wake_mirror(conn, organization_id, account_id) is None:
            return 0
        found = await conn.fetchrow(LOCK, organization_id, template_id)
        if found is None or found["status"] == "removed":
            return 0
        row = dict(found)
        at = clock.now()
        held_until = at + timedelta(seconds=seconds) if status == "paused" else None
        _merge(row, "status", at, None, {"status": status, "held_until": held_until})
        row["reread_at"] = at + timedelta(seconds=AGAIN)
        return await events.record(conn, await _write(conn, organization_id, found, row, at))


def _merge(row: dict[str, Any], facet: str, at: datetime, read_at: datetime | None, values: Mapping[str, Any]) -> bool:
    """Put `values` into the row if `at` is not before the newest word on this facet; `read_at`: of a full reading."""
    applied = msgspec.json.decode(row["applied"])
    newest = max(applied.get(facet, 0.0), read_at.timestamp() if read_at else 0.0)
    if at.timestamp() < newest:
        return False
    row.update(values)
    row["applied"] = msgspec.json.encode({**applied, facet: at.timestamp()}).decode()
    row["applied_at"] = max(at, row["applied_at"] or at)
    return True


async def _write(conn: Connection, organization_id: UUID, old: Any, row: dict[str, Any], at: datetime) -> list[Event]:
    """Store the row if it differs from `old`; returns the event to record if a customer sees a difference."""
    if all(row[name] == old[name] for name in row):
        return []
    before, after = shown(old), shown(row)
    changed = before != after
    if changed:
        row["updated_at"] = at
    await conn.execute(
        WRITE,
        organization_id,
        row["id"],
        row["graph_id"],
        row["category"],
        row["status"],
        row["parameter_format"],
        row["parameter_count"],
        row["components"],
        row["body_preview"],
        row["quality"],
        row["rejection_reason"],
        row["ttl_seconds"],
        row["held_until"],
        row["applied"],
        row["applied_at"],
        row["reread_at"],
        row["updated_at"],
    )
    # A template that customers do not see may change as it likes.
    return [event_of(organization_id, row, at)] if changed and not row["disabled_locally"] else []


def event_of(organization_id: UUID, row: Mapping[str, Any], at: datetime) -> Event:
    """What tells an organization that a template changed."""
    data = msgspec.json.encode({"template": shown(row)}).decode()
    return Event(organization_id, uuid7(), "whatsapp.template.updated", str(uuid7()), data, at)
