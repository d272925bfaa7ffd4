"""Templates as pages show them: how each is filled, its state, and how often it was sent."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.suppliers.whatsapp_cloud.bodies import TemplateLayout, layout
from heliograph.whatsapp import reads
from heliograph.whatsapp.reads import Template


class Entry(msgspec.Struct, frozen=True):
    """A template, and how it is filled."""

    template: Template
    layout: TemplateLayout
    #: When a paused template is checked again.
    held_until: datetime | None


GET = """
SELECT id, name, language, category, status, parameter_count, parameter_format, body_preview, components,
       rejection_reason, updated_at, quality, held_until
  FROM whatsapp_templates WHERE organization_id = $1 AND id = $2 AND NOT disabled_locally AND status <> 'removed'
"""


async def get(conn: Connection, actor: Actor, *, id: UUID) -> Entry:
    """A template in use. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, id)
    if row is None:
        raise NotFound("There is no such template.", resource="template", id=str(id))
    return Entry(
        reads.template_of(row),
        layout(msgspec.json.decode(row["components"]), row["parameter_format"], row["category"]),
        row["held_until"],
    )


def slots(found: TemplateLayout) -> list[tuple[str, str]]:
    """The purpose of each of its values, in order: (header, body, button or code; the variable's name)."""
    if found.authentication:
        return [("code", "")]
    return [
        *(("header", name) for name in found.header_variables),
        *(("body", name) for name in found.body_variables),
        *(("button", str(button.index + 1)) for button in found.buttons),
    ]


class Use(msgspec.Struct, frozen=True):
    """How often a template was sent among the messages examined, and when it was last sent."""

    count: int
    last_at: datetime


#: The number of newest messages examined for it.
LOOK = 20_000
USES = """
SELECT template_id, count(*)::int AS count, max(accepted_at) AS last_at FROM (
       SELECT template_id, accepted_at FROM whatsapp_messages
        WHERE organization_id = $1 AND mode = $2 ORDER BY id DESC LIMIT $3) looked_at
 WHERE template_id IS NOT NULL GROUP BY template_id
"""


async def uses(conn: Connection, actor: Actor, *, look: int = LOOK) -> dict[UUID, Use]:
    """How often each template was sent among the organization's newest messages: counting all would read them all."""
    rows = await conn.fetch(USES, actor.organization_id, actor.mode, look)
    return {row["template_id"]: Use(row["count"], row["last_at"]) for row in rows}
