"""Operators' questions about a sender ID before they decide on it, and its organization's answers: one question at a
time, until the decision."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from heliograph import notices
from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.notices import Notice

#: Maximum length of a question and of an answer, in characters.
LONGEST_QUESTION, LONGEST_ANSWER = 500, 1000


class NothingToAsk(Refusal):
    """This sender ID has been decided already, so there is nothing to ask about it."""

    code, status = "sender_id_decided", 409


class NothingToAnswer(Refusal):
    """This sender ID is no longer waiting for an answer."""

    code, status = "nothing_to_answer", 409


class Question(msgspec.Struct, frozen=True):
    """A question; `answer` is None until it is answered."""

    question: str
    answer: str | None


LOCK = "SELECT value, status, question FROM sender_ids WHERE organization_id = $1 AND id = $2 FOR NO KEY UPDATE"
ASK = "UPDATE sender_ids SET question = $3, answer = NULL WHERE organization_id = $1 AND id = $2"
ANSWER = "UPDATE sender_ids SET answer = $3 WHERE organization_id = $1 AND id = $2"


async def ask(conn: Connection, actor: Actor, *, id: UUID, question: str) -> None:
    """Ask the organization a question on behalf of an operator, and notify its people; replaces an earlier question.
    Raises Invalid, NotFound, NothingToAsk."""
    question = _checked("question", question, LONGEST_QUESTION)
    async with conn.transaction():
        known = await conn.fetchrow(LOCK, actor.organization_id, id)
        if known is None:
            raise NotFound(resource="sender_id", id=str(id))
        if known["status"] != "pending":
            raise NothingToAsk(id=str(id), status=known["status"])
        await conn.execute(ASK, actor.organization_id, id, question)
        after = {"question": question}
        await audit.record(conn, actor, "sender_id.asked", object_id=id, name=known["value"], after=after)
        facts: dict[str, str | int] = {"reason": question}
        notice = Notice(actor.organization_id, "sender.asked", str(id), known["value"], facts=facts)
        await notices.record(conn, notice, quiet=None)


async def answer(conn: Connection, actor: Actor, *, id: UUID, answer: str) -> str:
    """Record the organization's answer, or a corrected one; returns the sender ID's value. Raises Invalid, NotFound,
    NothingToAnswer."""
    answer = _checked("answer", answer, LONGEST_ANSWER)
    async with conn.transaction():
        known = await conn.fetchrow(LOCK, actor.organization_id, id)
        if known is None:
            raise NotFound(resource="sender_id", id=str(id))
        if known["status"] != "pending" or known["question"] is None:
            raise NothingToAnswer(id=str(id), status=known["status"])
        await conn.execute(ANSWER, actor.organization_id, id, answer)
        after = {"answer": answer}
        await audit.record(conn, actor, "sender_id.answered", object_id=id, name=known["value"], after=after)
    return str(known["value"])


OPEN = """
SELECT id, question, answer FROM sender_ids
 WHERE organization_id = $1 AND id = ANY ($2) AND status = 'pending' AND question IS NOT NULL
"""


async def asked(conn: Connection, actor: Actor, *, ids: Sequence[UUID]) -> dict[UUID, Question]:
    """The questions about the pending ones among these sender IDs."""
    rows = await conn.fetch(OPEN, actor.organization_id, ids)
    return {row["id"]: Question(row["question"], row["answer"]) for row in rows}


def _checked(field: str, text: str, longest: int) -> str:
    text = " ".join(text.split())
    if not 1 <= len(text) <= longest or "\0" in text:
        raise Invalid((field, "length", f"`{field}` must have 1 to {longest} characters"))
    return text
