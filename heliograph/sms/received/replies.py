"""Automatic replies: one confirmation of STOP or START, one answer to HELP.

A reply is queued in the transaction that acts on the keyword (kind "reply"), and then accepted like any other message:
it costs one unit of quota, and an organization that is suspended or has no quota left sends none, although the opt-out
itself takes effect. Its message id is chosen beforehand, so that it is accepted exactly once however often that is
tried.

The rule nobody may break: a number gets at most one reply of each kind in 24 hours, so two machines that answer each
other stop after one round. `automatic_replies.message_id` names the only message that may be sent to a number that has
opted out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import structlog

from heliograph.accounts.requests import IdempotencyInProgress
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Refusal, Unavailable
from heliograph.base.ids import uuid7
from heliograph.base.process import spans
from heliograph.base.process.crash import crash_point
from heliograph.base.process.spans import Span
from heliograph.consent.keywords import LANGUAGES
from heliograph.queue import leases
from heliograph.queue.backlog import Backlog
from heliograph.queue.leases import Lease, Postponed
from heliograph.sms.accepting.accept import Acceptor, Send

log = structlog.get_logger()

KIND = "reply"
#: The line of replies that are not yet accepted; the resulting messages have their own lines.
LINE = UUID(int=2)
#: A number gets at most one reply of each kind within this time.
AGAIN = timedelta(hours=24)
#: Seconds for which a reply is worth delivering. Shorter than AGAIN, so that no reply is still waiting when the next
#: one is allowed.
VALIDITY = 3600
#: Seconds before a reply that could not be stored is tried again.
PAUSE = 2.0
#: The organization's name is truncated to this many characters, so that a default text fits into one segment.
NAME = 30
#: By language, for organizations without a text of their own. They contain no letters that would require UCS-2.
TEXTS = {
    "en": {
        "stop": "{name}: you will get no more messages from us. Reply START to get them again.",
        "start": "{name}: you will get messages from us again. Reply STOP to get no more.",
        "help": "{name}: you get messages from us at this number. Reply STOP to get no more, START to get them again.",
    },
    "pt": {
        "stop": "{name}: deixa de receber mensagens nossas. Responda START para voltar a receber.",
        "start": "{name}: volta a receber mensagens nossas. Responda STOP para deixar de receber.",
        "help": "{name}: recebe aqui mensagens nossas. Responda STOP para deixar de receber ou START para voltar.",
    },
    "fr": {
        "stop": "{name}: vous ne recevrez plus nos messages. Répondez START pour les recevoir de nouveau.",
        "start": "{name}: vous recevrez de nouveau nos messages. Répondez STOP pour ne plus en recevoir.",
        "help": "{name}: vous recevez nos messages ici. Répondez STOP pour ne plus en recevoir, START pour y revenir.",
    },
    "es": {
        "stop": "{name}: hemos dejado de enviarle mensajes. Responda START para recibirlos de nuevo.",
        "start": "{name}: le enviaremos mensajes de nuevo. Responda STOP para dejar de recibirlos.",
        "help": "{name}: le enviamos mensajes. Responda STOP para dejar de recibirlos, START para volver.",
    },
    "sw": {
        "stop": "{name}: hutapokea tena ujumbe kutoka kwetu. Jibu START ili kupokea tena.",
        "start": "{name}: utapokea tena ujumbe kutoka kwetu. Jibu STOP ili usipokee zaidi.",
        "help": "{name}: unapokea ujumbe kutoka kwetu. Jibu STOP ili usipokee zaidi, START ili kupokea tena.",
    },
}


class KeywordReply(msgspec.Struct, frozen=True, gc=False):
    """A reply to a keyword. `kind`: "stop", "start" or "help"."""

    organization_id: UUID
    recipient: str
    kind: str
    #: The number that the keyword was sent to.
    sender_id: UUID
    at: datetime


# An existing row forbids another reply until it is old enough; then the new reply takes it over. One in times to come
# is from before the clock was set back.
WANT = """
INSERT INTO automatic_replies AS last (organization_id, recipient, kind, message_id, sender_id, replied_at)
SELECT organization_id, recipient, kind, message_id, sender_id, replied_at
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::uuid[], $6::timestamptz[])
       AS item (organization_id, recipient, kind, message_id, sender_id, replied_at)
 ORDER BY organization_id, recipient, kind
ON CONFLICT (organization_id, recipient, kind) DO UPDATE
   SET message_id = excluded.message_id, sender_id = excluded.sender_id, replied_at = excluded.replied_at,
       refusal = NULL
 WHERE last.replied_at <= excluded.replied_at - $7::interval
    OR last.replied_at > excluded.replied_at + interval '1 minute'
RETURNING organization_id, message_id
"""


async def want(conn: Connection, wanted: Sequence[KeywordReply]) -> int:
    """Queue the replies that are allowed. Runs in the caller's transaction; returns how many were queued."""
    # The same word twice in a batch gets one reply.
    unique = list({(one.organization_id, one.recipient, one.kind): one for one in wanted}.values())
    if not unique:
        return 0
    rows = await conn.fetch(
        WANT,
        [one.organization_id for one in unique],
        [one.recipient for one in unique],
        [one.kind for one in unique],
        [spans.marked(uuid7()) if spans.chosen() else uuid7() for _ in unique],
        [one.sender_id for one in unique],
        [one.at for one in unique],
        AGAIN,
    )
    if rows:
        await leases.put(conn, KIND, [(LINE, row["organization_id"], row["message_id"], 0.0) for row in rows])
    return len(rows)


DUE = """
SELECT item.id, r.recipient, r.kind, r.sender_id, o.name, o.country, o.reply_language, o.state, o.smart_encoding,
       o.replace_accents, o.allowed_countries,
       CASE r.kind WHEN 'stop' THEN o.stop_reply WHEN 'start' THEN o.start_reply ELSE o.help_reply END AS own
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id)
       CROSS JOIN LATERAL (
       SELECT recipient, kind, sender_id FROM automatic_replies
        WHERE organization_id = item.organization_id AND message_id = item.id) r
       CROSS JOIN LATERAL (SELECT * FROM organizations WHERE id = item.organization_id) o
"""
REFUSED = """
UPDATE automatic_replies SET refusal = v.refusal
  FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS v (organization_id, message_id, refusal)
 WHERE automatic_replies.organization_id = v.organization_id AND automatic_replies.message_id = v.message_id
"""


async def send(pool: Pool, acceptor: Acceptor, backlog: Backlog, *, seconds: float, limit: int = 200) -> int:
    """Accept replies that are due, under leases of `seconds`; returns how many were examined."""
    async with pool.acquire() as conn:
        await backlog.look(conn, KIND)
        claimed = await backlog.claim(conn, KIND, {LINE: limit}, seconds=seconds)
        if not claimed:
            return 0
        rows = await conn.fetch(DUE, [lease.organization_id for lease in claimed], [lease.id for lease in claimed])
    due = {row["id"]: row for row in rows}
    sends = {lease.id: made for lease in claimed if (made := _send(lease, due.get(lease.id))) is not None}
    begun = _traced(sends)
    results = dict(zip(sends, await acceptor.accept_many(list(sends.values())), strict=True))
    for id, span in begun.items():
        answer = results[id]
        span.end({"error.type": answer.code} if isinstance(answer, Refusal) else spans.NOTHING)
    crash_point("reply.after_accept")
    finished: list[Lease] = []
    back: list[Postponed] = []
    refused: list[tuple[UUID, UUID, str]] = []
    for lease in claimed:
        result = results.get(lease.id)
        if isinstance(result, Unavailable | IdempotencyInProgress):
            back.append(Postponed(lease, PAUSE, LINE))
            continue
        finished.append(lease)
        if isinstance(result, Refusal):
            refused.append((lease.organization_id, lease.id, result.code))
            log.info("automatic reply refused", received_id=str(lease.id), code=result.code)
    async with pool.acquire() as conn, conn.transaction():
        if refused:
            await conn.execute(REFUSED, *(list(column) for column in zip(*refused, strict=True)))
        if back:
            await leases.postpone(conn, back)
        await leases.finish(conn, finished)
    return len(claimed)


def text_of(kind: str, own: str | None, name: str, country: str | None, language: str | None) -> str:
    """The text of a reply: the organization's own, or the default in the language that it chose or that of its country;
    empty: no reply."""
    if own is not None:
        return own
    if language is not None:
        return TEXTS[language][kind].format(name=name[:NAME].strip())
    spoken = (one for one in TEXTS if one in LANGUAGES and country in LANGUAGES[one].countries)
    return TEXTS[next(spoken, "en")][kind].format(name=name[:NAME].strip())


def _traced(sends: dict[UUID, Send]) -> dict[UUID, Span]:
    """Begin a trace for each reply whose id says that it is traced, and put it into the send."""
    if not spans.on():
        return {}
    begun: dict[UUID, Span] = {}
    for id, one in sends.items():
        if spans.is_marked(id):
            said = {"organization_id": str(one.actor.organization_id), "message_id": str(id)}
            begun[id] = spans.root("automatic reply", said)
            sends[id] = msgspec.structs.replace(one, trace=begun[id].context)
    return begun


def _send(lease: Lease, row: Any) -> Send | None:
    if row is None:  # another reply has replaced it
        return None
    text = text_of(row["kind"], row["own"], row["name"], row["country"], row["reply_language"])
    if not text:
        return None
    countries = row["allowed_countries"]
    actor = Actor(
        organization_id=lease.organization_id,
        key_id=None,
        mode="live",
        scopes=frozenset(),
        state=row["state"],
        smart_encoding=row["smart_encoding"],
        replace_accents=row["replace_accents"],
        allowed_countries=None if countries is None else frozenset(countries),
    )
    digest = hashlib.sha256(b"automatic reply " + lease.id.bytes).digest()
    return Send(
        actor=actor,
        to=row["recipient"],
        text=text,
        sender_id=row["sender_id"],
        request_id=str(lease.id),
        key_hash=UUID(bytes=digest[:16]),
        request_hash=digest,
        validity_seconds=VALIDITY,
        id=lease.id,
    )
