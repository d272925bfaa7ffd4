"""The history of consent: every opt-out and opt-in, whether stated by the person or recorded on their behalf, with its
origin. An opt-out is recorded here even if the person had already opted out.

The rule nobody may break: an opt-out stands (`ended_at` is NULL) until the same person opts in, or the file that it
came from is undone. Code that withdraws one opt-out must look here for others that still stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7

OUT, IN = "out", "in"


class Statement(msgspec.Struct, frozen=True, gc=False):
    """An opt-out or opt-in to be recorded."""

    organization_id: UUID
    #: The address that was written to, or from: E.164, or a user id.
    recipient: str
    at: datetime
    #: "keyword", "operator", "organization" or "supplier", as in `OptOut`.
    source: str
    keyword: str | None = None
    message_id: UUID | None = None
    #: The file that it came from.
    import_id: UUID | None = None


class Entry(msgspec.Struct, frozen=True):
    """One entry of a person's history."""

    #: "out" or "in".
    said: str
    recipient: str
    at: datetime
    source: str
    keyword: str | None
    message_id: UUID | None
    #: Channel of the message that said so, for as long as it is kept: "sms" or "whatsapp".
    channel: str | None
    import_id: UUID | None
    #: The file's name, for as long as the import is listed.
    file: str | None
    #: Who recorded it: "person", "key", "cli" …; None: the person concerned.
    author_kind: str | None
    author: str | None
    #: When an opt-out ended; None: it still stands, or this is an opt-in.
    ended_at: datetime | None


RECORD = """
INSERT INTO consent_history (organization_id, id, recipient, said, at, source, keyword, message_id, import_id,
                             author_kind, author_id, author)
SELECT item.organization_id, item.id, item.recipient, $9, item.at, item.source, item.keyword, item.message_id,
       item.import_id, $10, $11, $12
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[], $5::text[], $6::text[], $7::uuid[], $8::uuid[])
    AS item (organization_id, id, recipient, at, source, keyword, message_id, import_id)
"""


async def record(conn: Connection, said: str, statements: Sequence[Statement], *, by: Principal | None = None) -> None:
    """Record statements, in the caller's transaction. `by`: who recorded them on people's behalf."""
    if statements:
        await conn.execute(
            RECORD,
            [one.organization_id for one in statements],
            [uuid7() for _ in statements],
            [one.recipient for one in statements],
            [one.at for one in statements],
            [one.source for one in statements],
            [one.keyword for one in statements],
            [one.message_id for one in statements],
            [one.import_id for one in statements],
            said,
            None if by is None else by.kind,
            None if by is None else by.id,
            None if by is None else by.name or None,
        )


END = """
UPDATE consent_history SET ended_at = now()
 WHERE ctid = ANY (ARRAY(
       SELECT place FROM unnest($1::uuid[], $2::text[], $3::timestamptz[]) AS item (organization_id, recipient, at)
              CROSS JOIN LATERAL names_of_person(item.organization_id, item.recipient) names
              CROSS JOIN LATERAL (
              SELECT ctid AS place FROM consent_history said
               WHERE said.organization_id = item.organization_id AND said.person = names.name
                 AND said.said = 'out' AND said.ended_at IS NULL AND said.at <= item.at OFFSET 0) standing))
"""


async def end(conn: Connection, statements: Sequence[Statement], *, earlier_than: Sequence[datetime]) -> None:
    """End people's opt-outs, under any of their names, that are no later than the time given for each."""
    organizations, recipients = [one.organization_id for one in statements], [one.recipient for one in statements]
    await conn.execute(END, organizations, recipients, list(earlier_than))


LIST = """
SELECT said, recipient, at, source, keyword, message_id,
       CASE WHEN message_id IS NULL THEN NULL
            WHEN EXISTS (SELECT FROM received_messages WHERE organization_id = $1 AND id = message_id) THEN 'sms'
            WHEN EXISTS (SELECT FROM whatsapp_messages WHERE organization_id = $1 AND id = message_id) THEN 'whatsapp'
       END AS channel,
       import_id,
       (SELECT file FROM contact_imports WHERE organization_id = $1 AND id = import_id) AS file,
       author_kind,
       coalesce(author, (SELECT name FROM api_keys WHERE organization_id = $1 AND id = author_id)) AS author, ended_at
  FROM consent_history
 WHERE organization_id = $1 AND person IN (SELECT name FROM names_of_person($1, $2))
 ORDER BY at DESC, id DESC LIMIT $3
"""


async def of_person(conn: Connection, actor: Actor, *, address: str, limit: int) -> list[Entry]:
    """The history under all names of the person with this address, newest first."""
    return [Entry(*row.values()) for row in await conn.fetch(LIST, actor.organization_id, address, limit)]
