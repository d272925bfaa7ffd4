"""Suppliers' rules for senders and numbers, set and removed like with `heliograph rule`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.base.ids import uuid7
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC_CHANGE
from heliograph.senders import numbers, rules
from heliograph.senders.book import ACTIONS, Action, Kind, NumberRule, SenderRule
from heliograph.sms.dispatch import routing

HERE = "/console/routes/rules"
#: Fields of the two forms.
SENDER = ("supplier", "rule", "country", "sender", "kind", "replacement", "note")
NUMBER = ("supplier", "prefix", "strip", "prepend", "numbering", "sender_numbering", "note")
#: The rules' refusals in a form's wording.
WRONG: Mapping[tuple[str, str], str] = {
    ("country", "unknown"): "Enter a two-letter country code, such as MZ.",
    ("rule", "enum"): "Choose one of those that are offered.",
    ("sender", "pattern"): "Enter 1 to 15 characters without accents.",
    ("replacement", "pattern"): "Enter 1 to 15 characters without accents.",
    ("replacement", "required"): "Enter the sender that is sent instead.",
    ("replacement", "unexpected"): "A sender that is carried or refused has no replacement.",
    ("kind", "unexpected"): "Choose one sender or a kind of senders, not both.",
    ("note", "length"): "A note can have at most 500 characters.",
    ("prefix", "pattern"): "Enter up to 15 digits, beginning with a calling code, without +.",
    ("strip", "pattern"): "Enter up to 15 digits, beginning with a calling code, without +.",
    ("strip", "never"): "No number with this prefix begins with these digits.",
    ("prepend", "pattern"): "Enter up to 10 digits.",
    ("prepend", "required"): "The rule changes nothing yet: strip digits, prepend some, or set TON and NPI.",
    ("numbering", "range"): "Enter TON and NPI as two numbers up to 255, such as 1/1.",
    ("sender_numbering", "range"): "Enter TON and NPI as two numbers up to 255, such as 1/1.",
}
#: Fields named differently in rules and in the form.
NAMED = {"action": "rule", "ton": "numbering", "sender_ton": "sender_numbering"}
_is_numbering = re.compile(r"([0-9]{1,3})/([0-9]{1,3})").fullmatch


async def show(request: Request) -> Answer:
    """All rules, by supplier."""
    async with request.reading() as conn:
        names = {one.id: one.name for one in await routing.load(conn)}
        senders = [one for one in await rules.load(conn) if one.supplier_id in names]
        written = [one for one in await numbers.load(conn) if one.supplier_id in names]
    values = {
        "names": names,
        "senders": sorted(senders, key=lambda one: names[one.supplier_id]),
        "numbers": sorted(written, key=lambda one: names[one.supplier_id]),
        "done": {name: request.text(said) for name, said in words.SENDER_RULES.items()},
        "kinds": {name: request.text(said) for name, said in words.SENDER_KINDS.items()},
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
    return Page(template="routing/rules.html", values=values)


async def show_sender(request: Request) -> Answer:
    """The form for a sender rule, filled in by the link of an existing one."""
    return Page(template="routing/rule_sender.html", values=await _form(request, SENDER, request.query))


async def set_sender(request: Request) -> Answer:
    """Set it, replacing an earlier one for the same senders."""
    form = {name: request.form.get(name, "").strip() for name in SENDER}
    wrong, supplier_id = Problems(), UUID(int=0)
    try:
        with wrong.gathering():
            supplier_id = await _supplier(request, form["supplier"])
        rule = SenderRule(
            id=uuid7(),
            supplier_id=supplier_id,
            country=form["country"].upper() or None,
            sender=form["sender"] or None,
            kind=cast(Kind, form["kind"]) if form["kind"] in words.SENDER_KINDS else None,
            action=cast(Action, form["rule"]),
            replacement=form["replacement"] or None,
            note=form["note"],
        )
        with wrong.gathering():
            rules.check(rule)
        wrong.report()
        async with request.writing() as conn:
            await rules.put(conn, rule, by=request.principal)
    except Invalid as refusal:
        return refused(
            "routing/rule_sender.html", form_errors(refusal, WRONG, fields=NAMED), await _form(request, SENDER, form)
        )
    return Redirect(location=HERE, notice=request.text("Saved: workers apply it within a second."))


async def show_number(request: Request) -> Answer:
    """The form for a number rule, filled in by the link of an existing one."""
    return Page(template="routing/rule_number.html", values=await _form(request, NUMBER, request.query))


async def set_number(request: Request) -> Answer:
    """Set it, replacing an earlier one for the same prefix."""
    form = {name: request.form.get(name, "").strip() for name in NUMBER}
    wrong, supplier_id = Problems(), UUID(int=0)
    # One that cannot be read is not missing.
    pairs: dict[str, tuple[int, int] | None] = dict.fromkeys(("numbering", "sender_numbering"), (0, 0))
    try:
        with wrong.gathering():
            supplier_id = await _supplier(request, form["supplier"])
        for name in pairs:
            with wrong.gathering():
                pairs[name] = _pair(form, name)
        rule = NumberRule(
            id=uuid7(),
            supplier_id=supplier_id,
            prefix=form["prefix"],
            strip=form["strip"],
            prepend=form["prepend"],
            note=form["note"],
            **pairs,
        )
        with wrong.gathering():
            numbers.check(rule)
        wrong.report()
        async with request.writing() as conn:
            await numbers.put(conn, rule, by=request.principal)
    except Invalid as refusal:
        return refused(
            "routing/rule_number.html", form_errors(refusal, WRONG, fields=NAMED), await _form(request, NUMBER, form)
        )
    return Redirect(location=HERE, notice=request.text("Saved: workers apply it within a second."))


async def show_remove_sender(request: Request) -> Answer:
    """The senders that it applies to, and what decides without it."""
    return await _ask(request, "sender", rules.load)


async def show_remove_number(request: Request) -> Answer:
    """The numbers that it applies to, and what decides without it."""
    return await _ask(request, "number", numbers.load)


async def remove_sender(request: Request) -> Answer:
    """Remove it: the remaining rules apply to its senders."""
    async with request.writing() as conn:
        await rules.remove(conn, request.id(), by=request.principal)
    return Redirect(location=HERE, notice=request.text("The rule is removed."))


async def remove_number(request: Request) -> Answer:
    """Remove it: the remaining rules apply to its numbers."""
    async with request.writing() as conn:
        await numbers.remove(conn, request.id(), by=request.principal)
    return Redirect(location=HERE, notice=request.text("The rule is removed."))


async def _ask(
    request: Request, what: str, load: Callable[[Connection], Awaitable[Sequence[SenderRule | NumberRule]]]
) -> Answer:
    id = request.id()
    async with request.reading() as conn:
        names = {one.id: one.name for one in await routing.load(conn)}
        one = next((one for one in await load(conn) if one.id == id and one.supplier_id in names), None)
    if one is None:
        raise NotFound
    values = {
        "what": what,
        "one": one,
        "name": names[one.supplier_id],
        "done": {action: request.text(said) for action, said in words.SENDER_RULES.items()},
        "kinds": {kind: request.text(said) for kind, said in words.SENDER_KINDS.items()},
    }
    return Page(template="routing/rule_remove.html", values=values)


async def _supplier(request: Request, text: str) -> UUID:
    async with request.reading() as conn:
        for one in await routing.load(conn):
            if str(one.id) == text:
                return one.id
    raise Invalid(("supplier", "unknown", "Choose a supplier."))


def _pair(form: Mapping[str, str], name: str) -> tuple[int, int] | None:
    if not form[name]:
        return None
    found = _is_numbering(form[name])
    if found is None:
        raise Invalid((name, "range", WRONG[name, "range"]))
    return int(found[1]), int(found[2])


async def _form(request: Request, names: tuple[str, ...], given: Mapping[str, str]) -> dict[str, Any]:
    async with request.reading() as conn:
        suppliers = [(str(one.id), one.name) for one in await routing.load(conn)]
    return {
        "typed": {name: given.get(name, "") for name in names},
        "suppliers": suppliers,
        "actions": [(name, request.text(words.SENDER_RULES[name])) for name in ACTIONS],
        "kinds": [
            ("", request.text("all senders")),
            *((name, request.text(said)) for name, said in words.SENDER_KINDS.items()),
        ],
    }
