"""Seals what is stored of deliveries, for organizations that seal their texts: bodies caught by a catcher, and
responses of receivers, which may repeat a text.

Only the text of a body is sealed, in place, so that a search for a number still finds it; it is restored byte for
byte, since signatures cover the whole body. Responses are sealed whole. The rule nobody may break: what cannot be
sealed is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.queue.leases import Lease
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import MARK, Item, Sealing
from heliograph.webhooks.delivery.attempts import Attempt

CAUGHT, ANSWERS = "webhook_caught", "webhook_attempt_evidence"
#: A text member in compact JSON, as bodies are: within a string its quotation marks would be escaped.
_TEXT = re.compile(r'("(?:text|message_template)":)("(?:[^"\\]|\\.)*")')
_MARKED = re.compile(f'"(?:text|message_template)":"{MARK}')
_MARK = MARK.encode()


def sealed_body(sealing: Sealing, organization_id: UUID, event_id: UUID, body: str) -> str:
    """A body as a catcher stores it."""
    if not (sealing.seals(organization_id) or _MARKED.search(body)):
        return body

    def sealed(text: str) -> str | None:
        if sealing.is_locked(organization_id):
            return None
        return sealing.sealed(organization_id, CAUGHT, event_id, text)

    return _with_texts(body, sealed)


async def opened_bodies(conn: Connection, organization_id: UUID, stored: Sequence[tuple[UUID, str]]) -> list[str]:
    """Bodies as they were sent, given the ids of their events; a text whose key is gone is null."""
    items = [
        Item(organization_id, id, msgspec.json.decode(text, type=str))
        for id, body in stored
        if _MARKED.search(body)
        for _, text in _TEXT.findall(body)
    ]
    texts: Iterator[str | None] = iter(await text_keys.opened(conn, CAUGHT, items))
    return [_with_texts(body, lambda _: next(texts)) if _MARKED.search(body) else body for _, body in stored]


def sealed_attempt(sealing: Sealing, lease: Lease, attempt: Attempt) -> Attempt:
    """An attempt as it is stored. `detail` would be the beginning of the response, so it is omitted."""
    whose, evidence = lease.organization_id, attempt.evidence
    if evidence is not None:
        head, body = (_sealed_answer(sealing, whose, lease.id, one) for one in (evidence.head, evidence.body))
        if head is not evidence.head or body is not evidence.body:
            evidence = msgspec.structs.replace(evidence, head=head, body=body)
    is_told = attempt.status is None or not sealing.seals(whose)
    if is_told and evidence is attempt.evidence:
        return attempt
    return msgspec.structs.replace(attempt, evidence=evidence, detail=attempt.detail if is_told else "")


async def opened_answers(
    conn: Connection, organization_id: UUID, event_id: UUID, stored: Sequence[bytes]
) -> list[bytes]:
    """Heads and bodies of responses to an event; empty if their key is gone."""
    items = [Item(organization_id, event_id, one.decode("latin-1")) for one in stored]
    return [(text or "").encode("latin-1") for text in await text_keys.opened(conn, ANSWERS, items)]


def _sealed_answer(sealing: Sealing, organization_id: UUID, event_id: UUID, octets: bytes) -> bytes:
    if not octets or not (sealing.seals(organization_id) or octets.startswith(_MARK)):
        return octets
    if sealing.is_locked(organization_id):
        return b""
    return sealing.sealed(organization_id, ANSWERS, event_id, octets.decode("latin-1")).encode("latin-1")


def _with_texts(body: str, change: Callable[[str], str | None]) -> str:
    def written(match: re.Match[str]) -> str:
        text = change(msgspec.json.decode(match[2], type=str))
        return match[1] + msgspec.json.encode(text).decode()

    return _TEXT.sub(written, body)
