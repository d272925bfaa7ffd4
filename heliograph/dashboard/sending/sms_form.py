"""The form of an SMS: the typed fields, and the send that they mean."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.accounts import idempotency, organizations
from heliograph.accounts.send_defaults import GUARANTEES
from heliograph.base import naming, phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.classes import kinds
from heliograph.contacts import suggesting
from heliograph.pages.forms import figures, local_times
from heliograph.pages.requests import Request
from heliograph.pages.words import SEND_FORM
from heliograph.sms.accepting import sender_ids
from heliograph.sms.accepting.accept import MAX_REFERENCE, MAX_TEXT, VALIDITY, Send

#: Validities offered, in seconds.
VALIDITIES = (300, 3_600, 21_600, 86_400, 172_800, 259_200)
#: Last four digits of a number that choose the outcome in test mode.
OUTCOMES = ("0000", "0001", "0002", "0003", "0004", "0005", "0006", "0007")
#: Maximum characters of a typed recipient.
LONGEST_NAME = 200


class Typed(msgspec.Struct, frozen=True):
    """The fields of the form as typed."""

    to: str = ""
    message: str = ""
    #: A sender ID or its id; empty: the default.
    sender: str = ""
    day: str = ""
    hour: str = ""
    validity: str = ""
    guarantee: str = ""
    reference: str = ""
    #: In test mode: one of OUTCOMES.
    outcome: str = ""
    #: Id of the saved text that it was filled in from.
    saved: str = ""
    #: A copy has the class of the original, which a program may have chosen; empty: transactional.
    traffic_class: str = ""
    #: "yes": the sender confirms that a person asked for it.
    challenged: str = ""


class Recipient(msgspec.Struct, frozen=True):
    """The recipient that the text in the field means."""

    #: E.164; None: nobody, or ambiguous.
    number: str | None
    #: The name of a contact, if one was typed.
    name: str = ""
    #: (number, name of contact or country) to choose from.
    choices: tuple[tuple[str, str], ...] = ()


def typed(request: Request) -> Typed:
    """The submitted form. `take` is a number chosen from several, `own` is the person's own number, `replace` requests
    plain characters."""
    form = {name: request.form.get(name, "") for name in Typed.__struct_fields__}
    for name in ("take", "own"):
        if request.form.get(name):
            form["to"] = request.form[name]
    return Typed(**form)


async def recipient(request: Request, conn: Connection, text: str) -> Recipient:
    """The recipient that `text` means: a number, parsed as written in the organization's country, or a contact.

    A number that could be another country's is never used without asking.
    """
    text = naming.sought(text)[:LONGEST_NAME]
    actor = request.actor
    country = (await organizations.get(conn, id=actor.organization_id)).country
    found = phones.readings(text, region=country)
    if found:
        is_explicit = phones.is_international(text)
        is_home = phones.country(found[0]) == country
        if len(found) == 1 and (is_explicit or is_home or (country is None and phones.is_valid(found[0]))):
            return Recipient(found[0])
        return Recipient(None, choices=tuple((one, request.locale.country(phones.country(one))) for one in found))
    people = await suggesting.suggest(conn, actor, text=text) if request.may("contacts:read") else []
    called = [one for one in people if one.name.lower() == text.lower()]
    if len(called) == 1:
        return Recipient(called[0].phone, called[0].name)
    return Recipient(None, choices=tuple((one.phone, one.name) for one in people))


async def addressee(
    request: Request,
    conn: Connection,
    text: str,
    outcome: str,
    *,
    meant: Callable[[Request, Connection, str], Awaitable[Recipient]] = recipient,
) -> tuple[str | None, str]:
    """(number to send to, issue of the field): the number is None, or the issue is "".

    `meant` interprets a field that is not empty. In test mode, the number ends in the digits that choose an outcome; if
    the field is empty and an outcome is chosen, an example number is used.
    """
    if request.mode == "test" and outcome in OUTCOMES and not text.strip():
        text = phones.example((await organizations.get(conn, id=request.actor.organization_id)).country)
    if not text.strip():
        return None, "required"
    found = await meant(request, conn, text)
    if found.number is None:
        return None, "ambiguous" if found.choices else "pattern"
    return ending(request, found.number, outcome), ""


def ending(request: Request, number: str, outcome: str) -> str:
    """A number; in test mode, with the digits that choose an outcome."""
    is_chosen = request.mode == "test" and outcome in OUTCOMES and number.startswith("+")
    return number[:-4] + outcome if is_chosen else number


async def read(request: Request, conn: Connection, given: Typed) -> Send:
    """The send that the form means. Raises Invalid, with each problem at its field."""
    wrong: list[tuple[str, str]] = []
    number, fault = await addressee(request, conn, given.to, given.outcome)
    if fault:
        wrong.append(("to", fault))
    if not given.message:
        wrong.append(("message", "required"))
    elif len(given.message) > MAX_TEXT:
        wrong.append(("message", "length"))
    if len(given.reference) > MAX_REFERENCE:
        wrong.append(("reference", "length"))
    sender, at, validity = (
        await _sender(request, conn, given, wrong),
        _at(request, given, wrong),
        _validity(given, wrong),
    )
    if given.guarantee not in ("", *GUARANTEES):
        wrong.append(("guarantee", "enum"))
    if wrong or number is None:
        raise Invalid(*((field, issue, SEND_FORM[f"{field}.{issue}"]) for field, issue in wrong))
    return Send(
        actor=request.actor,
        to=number,
        text=given.message,
        sender_id=sender,
        client_reference=given.reference or None,
        request_id=request.request_id,
        trace=request.trace,
        key_hash=_key(request),
        request_hash=idempotency.request_hash([str(request.person.user_id), msgspec.to_builtins(given), number]),
        send_at=at,
        validity_seconds=validity,
        guarantee=given.guarantee or None,
        traffic_class=given.traffic_class if given.traffic_class in kinds.NAMES else "transactional",
        challenge_passed=given.challenged == "yes",
    )


def _key(request: Request) -> UUID | None:
    """The form's idempotency key: submitted twice, it sends once."""
    once = request.form.get("_once", "")
    if not once or len(once) > idempotency.MAX_LENGTH:
        raise Invalid(("form", "required", SEND_FORM["form.required"]))
    return idempotency.key_hash(request.mode, "PAGE", "/send", f"{request.person.user_id} {once}")


async def _sender(request: Request, conn: Connection, given: Typed, wrong: list[tuple[str, str]]) -> UUID | None:
    if not given.sender:
        return None
    try:
        return (await sender_ids.find(conn, request.actor, which=given.sender.strip())).id
    except NotFound:
        wrong.append(("sender", "unknown"))
        return None


def _at(request: Request, given: Typed, wrong: list[tuple[str, str]]) -> datetime | None:
    if not given.day and not given.hour:
        return None
    if not given.day or not given.hour:
        wrong.append(("day", "required"))
        return None
    try:
        return local_times.read(given.day, given.hour, request.locale.zone)
    except local_times.SkippedTime:
        wrong.append(("day", "skipped"))
        return None
    except ValueError:
        wrong.append(("day", "format"))
        return None


def _validity(given: Typed, wrong: list[tuple[str, str]]) -> int | None:
    try:
        refused = Invalid(("validity", "range", SEND_FORM["validity.range"]))
        return figures.within(given.validity, refused, least=VALIDITY[0], most=VALIDITY[1])
    except Invalid:
        wrong.append(("validity", "range"))
        return None
