"""What is held about a person, on a real database: everything that their erasure clears, and nobody else's data."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.campaigns import drafts
from heliograph.networks import asked, learned
from heliograph.privacy import answers, erasure, holdings
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Sealing
from heliograph.sms import timeline
from heliograph.webhooks.recording import at_rest
from tests.rules.factories import message as sms
from tests.rules.factories import organization
from tests.rules.test_erased_copies import ANSWERED, ATTEMPT, IMAGE, TRIED, WORD
from tests.rules.test_erasure import WRITTEN
from tests.rules.test_erasure import answer as stored_answer

ANA, BIA = "+258841234567", "+258841234568"

#: Tables that an erasure clears and a disclosure does not read, and why.
NOT_SHOWN = {
    "contact_tags": "as the contact's tags",
    "events": "a copy of the texts of messages received",
    "inbound_messages": "a copy of the texts of messages received",
    "export_chunks": "a file about many people, whose rows are shown from where they come",
    "exports": "only what a list was searched for",
    "organization_notes": "of the operators of the installation, which the organization never sees",
}


def statements(*modules: ModuleType) -> str:
    """The SQL of modules."""
    found: list[str] = []
    for module in modules:
        for value in vars(module).values():
            found += [value] if isinstance(value, str) else value.values() if isinstance(value, dict) else []
    return "\n".join(one for one in found if isinstance(one, str))


def test_every_table_that_an_erasure_clears_is_shown() -> None:
    cleared = statements(erasure, answers) + learned.FORGET + asked.FORGET + timeline.ERASE_WRITTEN
    erased = set(re.findall(r"(?:DELETE FROM|UPDATE) (\w+)", cleared))
    shown = set(re.findall(r"(?:FROM|JOIN) (\w+)", statements(holdings) + answers.SHOWN + answers.SHOWN_BEGINNINGS))
    shown |= set(re.findall(r"FROM (\w+)", erasure.RECEIPTS + timeline.WRITTEN))
    assert erased - shown == NOT_SHOWN.keys()
    assert not [one for one in NOT_SHOWN if one in shown]


async def disclosed(pool: Pool, actor: Actor, address: str = ANA) -> dict[str, list[dict[str, Any]]]:
    """The entries of a disclosure by kind, without it."""
    found: dict[str, list[dict[str, Any]]] = {}
    async with pool.acquire() as conn:
        async for row in holdings.held(conn, actor, address=address):
            found.setdefault(row.pop("what"), []).append(row)
    return found


REJECT = "INSERT INTO contact_import_rejects VALUES ($1, $2, $3, 'why', $4)"
CAUGHT = "INSERT INTO webhook_caught VALUES ($1, now(), $2, $2, '', $3)"
SAFE = "INSERT INTO guard_settings (organization_id, safe) VALUES ($1, $2)"
SEEN = "INSERT INTO guard_seen VALUES ($1, $2, $2, 'otp', now(), $3, $3)"
REPLY = """
INSERT INTO automatic_replies (organization_id, recipient, kind, message_id, sender_id, replied_at)
VALUES ($1, $3, 'help', $2, $2, now())
"""
CONVERSATION = """
INSERT INTO whatsapp_conversations (organization_id, id, number_id, recipient, created_at)
VALUES ($1, $2, $2, $3, now())
"""


async def test_it_shows_what_is_held_besides_messages_and_contacts(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STEP_OF_BEGINNINGS", 1)
    monkeypatch.setattr(holdings, "STEP", 1)
    actor, other = await organization(pool), await organization(pool)
    for n, (who, phone) in enumerate(((actor, ANA), (actor, BIA), (other, ANA))):
        whose = who.organization_id
        for sql, values in (
            (IMAGE, (uuid7(), uuid7(), phone)),
            (REJECT, (uuid7(), n, f'["{phone}"]')),
            (CAUGHT, (uuid7(), f'{{"to":"{phone}"}}')),
            (CAUGHT, (uuid7(), f'{{"to":"{phone}0"}}')),  # a longer number is somebody else's
            (SEEN, (uuid7(), [int(phone[1:])])),
            (WORD, (phone, "stop")),
            (REPLY, (uuid7(), phone)),
            (CONVERSATION, (uuid7(), phone)),
            (ATTEMPT, (uuid7(), f"cannot store {phone}")),
            (ATTEMPT, (uuid7(), f"cannot store {phone}0")),
            (ANSWERED, (uuid7(), b"HTTP/1.1 500", f"no {phone}".encode())),
            (ANSWERED, (uuid7(), b"HTTP/1.1 500", f"no {phone}0".encode())),
        ):
            await pool.execute(sql, whose, *values)
        await stored_answer(pool, who, f"c{n}", f'{{"contact":{{"phone":"{phone}"}}}}')
        id, fingerprint = await sms(pool, who, to=phone, status="delivered", queued=False), uuid7()
        await pool.execute("UPDATE messages SET receipt = $2, receipt_at = now() WHERE id = $1", id, fingerprint)
        await pool.execute(WRITTEN, uuid7(), [fingerprint], [f"text:hi {phone}".encode()])
        await pool.execute(TRIED, whose, id, 1, f"bad text: hi {phone}")
    await pool.execute(SAFE, actor.organization_id, [ANA[1:], BIA[1:]])
    async with pool.acquire() as conn:
        await drafts.save(conn, actor, id=uuid7(), fields={"text": "Hello"}, numbers=["84 123-4567", ANA, BIA])

    found = await disclosed(pool, actor)
    assert {kind: len(rows) for kind, rows in found.items()} == {
        "contact_before_import": 1,
        "rejected_row": 1,
        "campaign_draft": 1,
        "whatsapp_word": 1,
        "automatic_reply": 1,
        "whatsapp_conversation": 1,
        "never_held_by_guard": 1,
        "seen_by_guard": 1,
        "caught_event": 1,
        "message": 1,
        "answer_of_supplier": 1,
        "receipt_as_written": 1,
        "stored_answer": 1,
        "answer_of_receiver": 1,
        "answer_in_list": 1,
    }
    assert found["campaign_draft"][0]["numbers"] == ["841234567", ANA]
    assert found["receipt_as_written"][0]["raw"] == f"text:hi {ANA}"
    assert found["answer_of_supplier"][0]["detail"] == f"bad text: hi {ANA}"
    assert found["answer_of_receiver"][0]["body"] == f"no {ANA}"
    assert BIA not in str(found)
    assert f"{ANA}0" not in str(found)
    async with pool.acquire() as conn:
        await erasure.erase(conn, actor, address=ANA)
    # The conversation has no text, and a STOP stays with the opt-out.
    assert (await disclosed(pool, actor)).keys() == {"message", "whatsapp_word", "whatsapp_conversation"}
    assert (await disclosed(pool, actor, BIA)).keys() == found.keys()


@pytest.mark.usefixtures("armed")
async def test_it_opens_what_is_sealed(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STEP", 1)
    actor = await organization(pool)
    whose = actor.organization_id
    async with pool.acquire() as conn:
        await text_keys.switch(conn, organization_id=whose, on=True)
        sealing = await Sealing.of(conn, [whose])

        def sealed(event: UUID, text: str) -> bytes:
            return sealing.sealed(whose, at_rest.ANSWERS, event, text).encode()

        for text in (f"no {ANA}", f"no {BIA}", f"not {ANA}"):
            event = uuid7()
            await conn.execute(ANSWERED, whose, event, sealed(event, "HTTP/1.1 500"), sealed(event, text))
        event = uuid7()
        body = at_rest.sealed_body(sealing, whose, event, f'{{"from":"{ANA}","text":"hello"}}')
        assert "hello" not in body
        await conn.execute(CAUGHT, whose, event, body)
    found = await disclosed(pool, actor)
    assert [row["body"] for row in found["answer_of_receiver"]] == [f"no {ANA}", f"not {ANA}"]
    assert found["answer_of_receiver"][0]["head"] == "HTTP/1.1 500"
    assert found["answer_of_receiver"][0]["started_at"] <= datetime.now(UTC).isoformat()
    assert [row["body"] for row in found["caught_event"]] == [f'{{"from":"{ANA}","text":"hello"}}']
