"""Reads everything that decisions about claimed WhatsApp messages depend on, for a whole batch at once.

The rule nobody may break: it is read on the connection that decides, so that a decision is as valid as its commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.queue.leases import Lease
from heliograph.sealing import text_keys
from heliograph.suppliers.whatsapp_cloud.bodies import TemplateLayout, layout
from heliograph.suppliers.whatsapp_cloud.pacing import PAIR_MOST_AHEAD, PAIR_SECONDS
from heliograph.whatsapp.accepting.accept import TABLE
from heliograph.whatsapp.accepting.lifetimes import BUFFER, BUFFERS


class Template(msgspec.Struct, frozen=True):
    """A template as it is now."""

    id: UUID
    name: str
    language: str
    category: str
    status: str
    disabled: bool
    held_until: datetime | None
    #: Meta's list lacks it, but Meta has not confirmed yet that it is gone.
    missing: bool
    layout: TemplateLayout


class Content(msgspec.Struct, frozen=True):
    """The content stored in `whatsapp_messages` for an outbound message."""

    type: str
    parameters: tuple[str, ...] = ()
    body: str = ""
    previewUrl: bool = False


class ClaimedMessage(msgspec.Struct, frozen=True, gc=False):
    """A claimed message with everything that decisions about it depend on."""

    lease: Lease
    status: str | None
    mode: str
    recipient: str
    number_id: UUID
    conversation_id: UUID
    template_id: UUID | None
    category: str
    deadline_at: datetime | None
    content: str | None
    organization_state: str
    opted_out: bool
    window_until: datetime | None
    #: Seconds by which the messages for this user from this number, whichever worker sent them, are ahead of Meta's
    #: pace; None: there were none.
    pair_debt: float | None
    at: datetime
    attempt: int
    #: "accepted" if an earlier one was, whose answer came late: until Meta reports, only attempts show it.
    attempt_state: str | None
    started_at: datetime | None
    unknowns: int
    #: Its content is sealed, and its organization's key is not available here.
    is_locked: bool = False

    @property
    def is_unsent(self) -> bool:
        """Whether it is not known to have been accepted by Meta."""
        return self.status == "accepted"

    @property
    def authentication(self) -> bool:
        """Whether it is a one-time code, which must not arrive late or twice."""
        return self.category == "authentication"

    @property
    def window_open(self) -> bool:
        """Whether the service window is open."""
        return self.window_until is not None and self.window_until > self.at

    @property
    def is_near_pace(self) -> bool:
        """Whether this user has had so many messages that the next must count for all workers before it is sent; to
        count it once Meta has accepted it costs less."""
        return self.pair_debt is not None and self.pair_debt > _NEAR_PACE

    @property
    def expires_at(self) -> datetime:
        """When it is no longer worth handing over: the rest of its lifetime is for Meta's statuses."""
        end = self.deadline_at or self.at + timedelta(days=30)
        return end - BUFFERS.get(self.category, BUFFER)


_NEAR_PACE = 5 * PAIR_SECONDS
_BUFFERS = " ".join(f"WHEN '{name}' THEN {one.total_seconds():.0f}" for name, one in BUFFERS.items())
#: An SQL condition on a row of `queue`: its message is past its `expires_at`.
EXPIRED = f"""
(SELECT m.deadline_at - make_interval(secs => CASE m.billing_category {_BUFFERS} ELSE {BUFFER.total_seconds():.0f} END)
        <= now()
   FROM whatsapp_messages m WHERE m.organization_id = queue.organization_id AND m.id = queue.id LIMIT 1)
"""
#: An SQL expression on a row of `whatsapp_conversations`: until when the messages to its user use up Meta's limit. A
#: time further ahead is from before the clock was set back, and would stop all messages until it comes again.
PAID_UNTIL = f"CASE WHEN pair_paid_until < now() + interval '{PAIR_MOST_AHEAD} seconds' THEN pair_paid_until END"
# Attempts are looked up only for rows that have one; LIMIT keeps the planner from turning look-ups into other joins.
DUE = f"""
SELECT m.status, m.mode, m.recipient, m.number_id, coalesce(c.merged_into, m.conversation_id) AS conversation_id,
       m.template_id, m.billing_category, m.deadline_at, m.content, o.state AS organization_state,
       silence.since IS NOT NULL AS opted_out,
       CASE WHEN c.merged_into IS NULL THEN c.expires_at
            ELSE (SELECT expires_at FROM whatsapp_conversations
                   WHERE organization_id = item.organization_id AND id = c.merged_into) END AS window_until,
       extract(epoch FROM CASE WHEN c.merged_into IS NULL THEN c.pair_paid_until
                               ELSE (SELECT {PAID_UNTIL} FROM whatsapp_conversations
                                      WHERE organization_id = item.organization_id AND id = c.merged_into)
                          END - now())::float8 AS pair_debt,
       now() AS at,
       coalesce(a.attempt, 0) AS attempt, a.state AS attempt_state, a.started_at, coalesce(a.unknowns, 0) AS unknowns
  FROM unnest($1::uuid[], $2::uuid[], $3::boolean[]) WITH ORDINALITY AS item (organization_id, id, tried, n)
  LEFT JOIN LATERAL (SELECT status, mode, recipient, number_id, conversation_id, template_id, billing_category,
                            deadline_at, content FROM whatsapp_messages
                      WHERE organization_id = item.organization_id AND id = item.id LIMIT 1) m ON true
  LEFT JOIN LATERAL (SELECT state FROM organizations WHERE id = item.organization_id LIMIT 1) o ON true
  LEFT JOIN LATERAL (SELECT expires_at, merged_into, {PAID_UNTIL} AS pair_paid_until FROM whatsapp_conversations
                      WHERE organization_id = item.organization_id AND id = m.conversation_id LIMIT 1) c ON true
  LEFT JOIN LATERAL (SELECT since FROM opted_out_since(item.organization_id, m.recipient) LIMIT 1) silence ON true
  LEFT JOIN LATERAL (
       SELECT attempt, CASE WHEN bool_or(state = 'accepted') OVER () THEN 'accepted' ELSE state END AS state,
              started_at, count(*) FILTER (WHERE state = 'unknown') OVER () AS unknowns
         FROM attempts
        WHERE item.tried AND organization_id = item.organization_id AND message_id = item.id
        ORDER BY attempt DESC LIMIT 1) a ON true
 ORDER BY item.n
"""


async def load(conn: Connection, claimed: Sequence[Lease]) -> list[ClaimedMessage]:
    """The messages of these rows, in order, with decrypted contents."""
    rows = await conn.fetch(
        DUE,
        [lease.organization_id for lease in claimed],
        [lease.id for lease in claimed],
        [lease.attempt > 0 for lease in claimed],
    )
    found = [ClaimedMessage(lease, *row.values()) for lease, row in zip(claimed, rows, strict=True)]
    if not any(text_keys.is_marked(one.content) for one in found):
        return found
    items = [text_keys.Item(one.lease.organization_id, one.lease.id, one.content) for one in found]
    opened = await text_keys.read(conn, TABLE, items)
    return [
        msgspec.structs.replace(
            one,
            content=content,
            is_locked=content is None and one.content is not None and one.lease.organization_id in opened.locked,
        )
        for one, content in zip(found, opened.texts, strict=True)
    ]


TEMPLATES = """
SELECT t.id, t.name, t.language, t.category, t.status, t.disabled_locally, t.held_until,
       t.missing_at IS NOT NULL AS missing, t.components, t.parameter_format
  FROM unnest($1::uuid[], $2::uuid[]) AS asked (organization_id, id)
  JOIN whatsapp_templates t ON t.organization_id = asked.organization_id AND t.id = asked.id
"""


async def load_templates(conn: Connection, dues: Sequence[ClaimedMessage]) -> dict[UUID, Template]:
    """The templates of these messages, by id."""
    asked = {(due.lease.organization_id, due.template_id) for due in dues if due.template_id is not None}
    if not asked:
        return {}
    rows = await conn.fetch(TEMPLATES, [one for one, _ in asked], [id for _, id in asked])
    return {
        row["id"]: Template(
            row["id"],
            row["name"],
            row["language"],
            row["category"],
            row["status"],
            row["disabled_locally"],
            row["held_until"],
            row["missing"],
            layout(msgspec.json.decode(row["components"]), row["parameter_format"], row["category"]),
        )
        for row in rows
    }
