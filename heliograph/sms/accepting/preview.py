"""A dry run of a send: how the text is encoded and split, who it would come from, what it would cost.

The rule nobody may break: nothing is stored, and every reason to refuse the send is checked here, in the same order.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from heliograph.accounts import spending
from heliograph.accounts.organizations import forbidden
from heliograph.accounts.quota import QuotaExceeded
from heliograph.base.actor import Actor
from heliograph.base.database.clock import iso, now
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Refusal
from heliograph.base.sentences import with_noun
from heliograph.classes.quiet import QuietHours
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.guard import book
from heliograph.sms.accepting import accept, encoding, sender_choice
from heliograph.sms.accepting.accept import Acceptor, Send
from heliograph.sms.accepting.sender_ids import SenderId
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.outcomes import deadline
from heliograph.suppliers.alphabets import gsm7

#: Characters per segment: on its own, and as one of several (a header of six octets takes the rest).
HOLDS = {"gsm7": (160, 153), "ucs2": (70, 67)}
#: Maximum number of characters named in a warning.
NAMED = 10


class Part(msgspec.Struct, frozen=True):
    """One segment. `units`: septets or 16-bit units; `holds`: how many would fit."""

    number: int
    units: int
    holds: int
    text: str


class Measured(msgspec.Struct, frozen=True):
    """A text as it would be split, whatever its recipient and whether or not it is allowed."""

    encoding: str
    #: What would be sent: after normalization and smart encoding.
    text: str
    units: int
    parts: list[Part]
    #: Its characters outside the GSM alphabet, each once; empty if the encoding is GSM-7.
    strange: list[str]
    #: The same text with plain characters, in GSM-7; None if it is GSM-7 already, or there is no such text.
    plain: str | None
    #: Segments of `plain`.
    plain_segments: int


class Warning(msgspec.Struct, frozen=True):
    """Something that the sender may not have intended."""

    code: str
    message: str


class Preview(msgspec.Struct, frozen=True):
    """The result of a dry run."""

    to: str
    sender: SenderId
    encoding: str
    #: What would be sent: after normalization and smart encoding.
    text: str
    units: int
    parts: list[Part]
    send_at: datetime | None
    #: When the recipient's quiet hours end, if it would wait for that; otherwise None.
    quiet_until: datetime | None
    expires_at: datetime
    #: Messages charged to the quota, and the remaining quota before and after.
    cost: int
    remaining: int
    remaining_after: int
    warnings: list[Warning]


STANDING = """
SELECT (SELECT since FROM opted_out_since($1, $2)) AS since,
       coalesce((SELECT total - used FROM quotas WHERE organization_id = $1), 0) AS remaining,
       (SELECT quiet_hours FROM organizations WHERE id = $1) AS quiet_hours
"""
_HOURS = QuietHours()


async def preview(conn: Connection, acceptor: Acceptor, send: Send) -> Preview:
    """Preview a send. Raises what `Acceptor.accept` would raise for it, except for errors of idempotency keys."""
    actor = send.actor
    _, segments = encoding.count(send.text, smart=actor.smart_encoding, accents=actor.replace_accents)
    refusal = accept.unfit(send, segments) or forbidden(send.actor, send.to)
    if refusal is not None:
        raise refusal
    held = accept.is_guarded(send) and await book.check(
        conn, actor.organization_id, send.to, send.traffic_class, challenged=send.challenge_passed
    )
    sender: SenderId | Refusal
    try:
        sender = await sender_choice.resolve(conn, actor, sender_id=send.sender_id, sender_name=send.sender_name)
        if actor.mode == "live":
            await acceptor.check_sender(send, sender, conn=conn)
            await acceptor.price(send, sender, segments, conn=conn)
    except Refusal as refused:
        if refused.status != 409:  # an opt-out takes precedence over problems with the sender
            raise
        sender = refused
    standing = await conn.fetchrow(STANDING, actor.organization_id, send.to)
    assert standing is not None
    if standing["since"] is not None:
        raise RecipientOptedOut(since=iso(standing["since"]))
    if isinstance(sender, Refusal):
        raise sender
    cost, remaining = int(actor.mode == "live"), standing["remaining"]
    if cost:
        await spending.check(conn, actor.organization_id, key_id=actor.key_id, segments=segments)
    if cost > remaining:
        raise QuotaExceeded(remainingQuota=remaining, requested=cost)
    encoded = encoding.encode(send.text, smart=actor.smart_encoding, accents=actor.replace_accents)
    at = now()
    due = max(at, send.send_at or at)
    # Quiet hours do not apply where only simulators carry messages (`sms.dispatch.channel`).
    waits = actor.mode == "live" and await routing.waits_for_day(conn, send.traffic_class)
    quiet_until = _HOURS.until(standing["quiet_hours"], send.to, due) if waits else None
    # Its validity is paused in the meantime (`sms.daytime`).
    expires_at = deadline(at, accept.expiry(at, send)) + ((quiet_until or due) - due)
    return Preview(
        to=send.to,
        sender=sender,
        encoding=encoded.encoding,
        text=encoded.text,
        units=encoded.units,
        parts=_parts(encoded),
        send_at=send.send_at,
        quiet_until=quiet_until,
        expires_at=expires_at,
        cost=cost,
        remaining=remaining,
        remaining_after=remaining - cost,
        warnings=_warnings(send, encoded, remaining - cost, held=held, quiet_until=quiet_until),
    )


def measure(actor: Actor, text: str) -> Measured:
    """How a text of at least one character is encoded and split for an organization."""
    encoded = encoding.encode(text, smart=actor.smart_encoding, accents=actor.replace_accents)
    strange = _strange(encoded)
    replaced = encoding.encode(text, smart=True, accents=True) if strange else encoded
    plain = replaced if strange and replaced.encoding == "gsm7" else None
    return Measured(
        encoding=encoded.encoding,
        text=encoded.text,
        units=encoded.units,
        parts=_parts(encoded),
        strange=strange,
        plain=plain.text if plain else None,
        plain_segments=len(plain.segments) if plain else 0,
    )


def _strange(encoded: encoding.Encoded) -> list[str]:
    if encoded.encoding == "gsm7":
        return []
    return [one for one in dict.fromkeys(encoded.text) if encoding.count(one)[0] == "ucs2"]


def _parts(encoded: encoding.Encoded) -> list[Part]:
    is_gsm = encoded.encoding == "gsm7"
    holds = HOLDS[encoded.encoding][len(encoded.segments) > 1]
    return [
        Part(
            number,
            len(octets) if is_gsm else len(octets) // 2,
            holds,
            gsm7.decode(octets) if is_gsm else octets.decode("utf-16-be"),
        )
        for number, octets in enumerate(encoded.segments, 1)
    ]


def _warnings(
    send: Send, encoded: encoding.Encoded, remaining: int, *, held: bool, quiet_until: datetime | None
) -> list[Warning]:
    warnings = []
    if quiet_until is not None:
        warnings.append(
            Warning("quiet_hours", f"Quiet hours where the recipient is: it would wait until {iso(quiet_until)}.")
        )
    if held:
        warnings.append(
            Warning("held", "Unusually many messages go to numbers like this one: it would wait for the operator.")
        )
    if encoded.encoding == "ucs2":
        strange = _strange(encoded)
        named = " ".join(strange[:NAMED]) + (" …" if len(strange) > NAMED else "")
        warnings.append(
            Warning(
                "unicode",
                (f"A segment holds 70 characters instead of 160, because these are not in the GSM alphabet: {named}"),
            )
        )
        shorter = _shorter(encoded)
        if shorter is not None:
            warnings.append(shorter)
    if encoded.text != send.text:
        accents = encoded.encoding == "gsm7" and encoding.count(send.text, smart=True)[0] != "gsm7"
        what = (
            "Accents are removed and typographic characters replaced"
            if accents
            else "Typographic characters are replaced by plain ones"
        )
        warnings.append(Warning("changed", f"{what}; `text` is what is sent."))
    if len(encoded.segments) > 1:
        warnings.append(
            Warning(
                "several_segments",
                f"It takes {len(encoded.segments)} segments, each of which networks bill separately.",
            )
        )
    if send.actor.mode == "test":
        warnings.append(Warning("test_key", "Messages sent with a test key reach no handset and use no quota."))
    elif remaining == 0:
        warnings.append(Warning("last_of_quota", "This message uses the last of the quota."))
    return warnings


def _shorter(encoded: encoding.Encoded) -> Warning | None:
    """A warning about options of the organization with which this text would need fewer segments."""
    for accents, choice in ((False, "With smart encoding"), (True, "With smart encoding and without accents")):
        kind, segments = encoding.count(encoded.text, smart=True, accents=accents)
        if kind == "gsm7":
            if segments == len(encoded.segments):
                return None
            said = f"{choice} it would take {with_noun(segments, 'segment')} instead of {len(encoded.segments)}"
            return Warning("shorter", f"{said}; the operator can turn this on for the organization.")
    return None
