"""Settings: the organization's name, message defaults, requirements for its members, and closing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from heliograph.accounts import organizations, send_defaults
from heliograph.accounts.organizations import Organization
from heliograph.accounts.send_defaults import SendDefaults
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.forms import figures, leaving, organization_rules, shortening
from heliograph.pages.people import own_account
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.people import policy
from heliograph.people.policy import MANY
from heliograph.people.roles import OWNERS
from heliograph.retention.shortening import NotAgreed
from heliograph.sealing import text_keys

#: Choices for the idle hours after which a session ends; none chosen: the default rule.
SESSION_HOURS = (1, 4, 8, 24, 72, 168, 720)
#: Choices for messages' validity, in seconds, and for how long texts and messages are kept, in days.
VALIDITIES = (300, 3_600, 21_600, 86_400, 172_800, 259_200)
TEXT_DAYS, MESSAGE_DAYS = (1, 3, 7, 14, 30, 60, 90), (30, 60, 90, 180, 365)
#: Fields of each group; each group is a form of its own.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "general": ("name", "time_zone", "country"),
    "messages": ("encoding", "allowed"),
    "defaults": ("guarantee", "validity", "text_days", "message_days", "quiet_hours", "quiet_from", "quiet_to"),
    "security": ("factor_required", "reveals", "developer_keys", "session_hours", "approval_above"),
}
#: Upper bound of all choices.
MOST = 10**9 - 1
#: The choice of custom quiet hours, and the form's initial ones.
OWN_HOURS, USUAL_HOURS = "own", ("20:00", "08:00")

#: Typed values by field.
Typed = Mapping[str, str]


async def show(request: Request) -> Answer:
    """All settings, each group in a form of its own."""
    return Page(template="organization/settings.html", values=await _values(request))


async def change_general(request: Request) -> Answer:
    """Change name, time zone and country."""

    async def work(conn: Connection, actor: Actor, typed: Typed) -> None:
        wrong, zone = Problems(), typed["time_zone"].strip()
        with wrong.gathering():
            await policy.rename(conn, actor, name=typed["name"])
        with wrong.gathering():
            await policy.configure(conn, actor, time_zone=zone or None, country=typed["country"] or None)
        wrong.report()

    return await _changed(request, "general", work)


async def change_messages(request: Request) -> Answer:
    """Change how texts are written, and which countries are allowed."""

    async def work(conn: Connection, actor: Actor, typed: Typed) -> None:
        encoding = organization_rules.encoding(typed["encoding"])
        await policy.configure(
            conn,
            actor,
            smart_encoding=encoding.is_smart,
            replace_accents=encoding.replaces_accents,
            allowed_countries=organization_rules.countries(typed["allowed"]),
        )

    return await _changed(request, "messages", work)


async def change_defaults(request: Request) -> Answer:
    """Change the defaults of sends, and how long texts and messages are kept."""

    async def work(conn: Connection, actor: Actor, typed: Typed) -> None:
        changes = partial(
            policy.change_defaults,
            conn,
            actor,
            guarantee=typed["guarantee"] or None,
            validity_seconds=_chosen("validity", typed["validity"]),
            text_days=_chosen("text_days", typed["text_days"]),
            message_days=_chosen("message_days", typed["message_days"]),
            quiet_hours=_quiet(typed),
        )
        await shortening.change(request, conn, actor.organization_id, changes)

    return await _changed(request, "defaults", work)


def _quiet(typed: Typed) -> str | None:
    chosen = typed["quiet_hours"] or None
    return f"{typed['quiet_from']}-{typed['quiet_to']}" if chosen == OWN_HOURS else chosen


def _chosen(field: str, text: str) -> int | None:
    return figures.within(text, Invalid((field, "enum", "Choose one of those that are offered.")), most=MOST)


async def change_security(request: Request) -> Answer:
    """Change what is required of members."""

    async def work(conn: Connection, actor: Actor, typed: Typed) -> None:
        wrong = Problems()
        with wrong.gathering():
            await policy.configure(
                conn,
                actor,
                factor_required=typed["factor_required"] == "yes",
                session_hours=_chosen("session_hours", typed["session_hours"]),
                reveals=typed["reveals"] == "yes",
                developer_keys=typed["developer_keys"] == "yes" if request.may(permission=OWNERS) else None,
            )
        least, most = send_defaults.APPROVAL
        outside = Invalid(("approval_above", "range", f"`approval_above` must be from {least} to {most}"))
        with wrong.gathering():
            above = figures.within(typed["approval_above"], outside, least=least, most=most)
            await policy.change_defaults(conn, actor, approval_above=above)
        wrong.report()

    return await _changed(request, "security", work)


async def show_close(request: Request) -> Answer:
    """What closing the organization stops."""
    return Page(template="organization/settings_close.html", values=await _stops(request))


async def close(request: Request) -> Answer:
    """Close the organization."""
    try:
        confirming.check(request, request.person.organization or "")
    except Invalid as refusal:
        return refused("organization/settings_close.html", refusal, await _stops(request))
    async with request.writing() as conn, conn.transaction():
        await policy.close(conn, request.acting("live"))
    request.services.sessions.forget(request.token)
    return Redirect(location=request.to("/settings"), notice=request.text("The organization is closed."))


async def _changed(request: Request, group: str, work: Callable[[Connection, Actor, Typed], Awaitable[None]]) -> Answer:
    try:
        async with request.writing() as conn, conn.transaction():
            actor = request.acting("live")
            shown = _shown(*await _known(conn, actor))
            await work(conn, actor, leaving.typed(request.form, GROUPS[group], shown))
    except NotAgreed as asks:
        return shortening.ask(request, asks, back=request.to("/settings"))
    except Invalid as refusal:
        return refused(
            "organization/settings.html", form_errors(refusal, words.SETTINGS_FORM), await _values(request, group)
        )
    request.services.sessions.forget(request.token)
    return Redirect(location=request.to("/settings"), notice=request.text("The settings are saved."))


async def _known(conn: Connection, actor: Actor) -> tuple[Organization, SendDefaults]:
    known = await organizations.get(conn, id=actor.organization_id)
    return known, await send_defaults.get(conn, organization_id=known.id)


def _shown(known: Organization, defaults: SendDefaults) -> dict[str, str]:
    """The current values of all fields."""
    first, _, last = defaults.quiet_hours.partition("-") if "-" in defaults.quiet_hours else (None, "", None)
    above = defaults.approval_above
    return {
        "name": known.name,
        "time_zone": known.time_zone or "",
        "country": known.country or "",
        "encoding": organization_rules.shown_encoding(known),
        "allowed": organization_rules.shown_countries(known),
        "guarantee": defaults.guarantee,
        "validity": str(defaults.validity_seconds or ""),
        "text_days": str(defaults.text_days or ""),
        "message_days": str(defaults.message_days or ""),
        "quiet_hours": defaults.quiet_hours if first is None else OWN_HOURS,
        "quiet_from": first or USUAL_HOURS[0],
        "quiet_to": last or USUAL_HOURS[1],
        "factor_required": "yes" if known.factor_required else "",
        "reveals": "yes" if known.reveals else "",
        "developer_keys": "yes" if known.developer_keys else "",
        "session_hours": str(known.session_hours or ""),
        "approval_above": "" if above is None else str(above),
    }


async def _values(request: Request, group: str = "") -> dict[str, Any]:
    """`group`: the one that was submitted and refused."""
    async with request.reading() as conn:
        known, defaults = await _known(conn, request.acting("live"))
    shown = _shown(known, defaults)
    typed = shown | (leaving.typed(request.form, GROUPS[group], shown) if group else {})
    locale = request.locale
    kept = request.services.settings.text_retention_days
    days = {one for one in TEXT_DAYS if one < kept} | _own(defaults.text_days)
    months = request.services.settings.metadata_retention_months
    message_days = {one for one in MESSAGE_DAYS if one < 31 * months} | _own(defaults.message_days)
    validities = {*VALIDITIES} | _own(defaults.validity_seconds)
    hours = {*SESSION_HOURS} | _own(known.session_hours)
    may_owners = request.may(permission=OWNERS)
    regions = sorted(set(phones.REGIONS.values()) - {"001"}, key=locale.country)
    return typed | {
        "organization": known,
        "was": {
            name: leaving.written({field: shown[field] for field in fields if field != "developer_keys" or may_owners})
            for name, fields in GROUPS.items()
        },
        "countries": [(one, locale.country(one)) for one in regions],
        "zones": own_account.zones(),
        "encodings": [(name, request.text(said), request.text(more)) for name, said, more in words.ENCODINGS],
        "may_owners": may_owners,
        "guarantees": [(name, request.text(said), request.text(more)) for name, said, more in words.GUARANTEES],
        "validities": [(str(one), locale.duration(one)) for one in sorted(validities)],
        "quiets": [(name, request.text(said), request.text(more)) for name, said, more in words.QUIET_HOURS],
        "kept_days": kept,
        "days": [(str(one), locale.duration(86_400 * one)) for one in sorted(days)],
        "kept_months": months,
        "days_of_messages": [(str(one), locale.duration(86_400 * one)) for one in sorted(message_days)],
        "offered_hours": [(str(one), locale.duration(3600 * one)) for one in sorted(hours)],
    }


def _own(chosen: int | None) -> set[int]:
    """A value chosen elsewhere, which must be offered too: a list without it would show, and save, another one."""
    return set() if chosen is None else {chosen}


async def _stops(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        actor = request.acting("live")
        found = await policy.stops(conn, actor)
        sealed = await text_keys.get(conn, organization_id=actor.organization_id)
    return {"stops": found, "is_sealed": sealed.key == "kept", "many": MANY, "name": request.person.organization or ""}
