"""D20 Settings: the organization's name, message defaults, requirements for its members, and closing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from heliograph.accounts import organizations, send_defaults
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.pages import words
from heliograph.pages.answers import Answer, Elsewhere, Shown, refused, worded
from heliograph.pages.forms import figures
from heliograph.pages.people import own_account
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.people import policy
from heliograph.people.policy import MANY
from heliograph.people.roles import OWNERS

#: Choices for the idle hours after which a session ends; none chosen: the default rule.
SESSION_HOURS = (1, 4, 8, 24, 72, 168, 720)
#: Choices for messages' validity, in seconds, and for how long texts and messages are kept, in days.
VALIDITIES = (300, 3_600, 21_600, 86_400, 172_800, 259_200)
TEXT_DAYS, MESSAGE_DAYS = (1, 3, 7, 14, 30, 60, 90), (30, 60, 90, 180, 365)
#: Upper bound of all choices.
MOST = 10**9 - 1
#: Represents all countries. An empty field is a slip, which must not allow the whole world.
EVERYWHERE = "any"
#: The choice of custom quiet hours, and the form's initial ones.
OWN_HOURS, USUAL_HOURS = "own", ("20:00", "08:00")


async def show(request: Request) -> Answer:
    """All settings, each group in a form of its own."""
    return Shown(template="organization/settings.html", values=await _values(request))


async def change_general(request: Request) -> Answer:
    """Change name, time zone and country."""
    form = request.form

    async def work(conn: Connection, actor: Actor) -> None:
        await policy.rename(conn, actor, name=form.get("name", ""))
        await policy.configure(
            conn, actor, time_zone=form.get("time_zone") or None, country=form.get("country") or None
        )

    return await _changed(request, work)


async def change_messages(request: Request) -> Answer:
    """Change how texts are written, and which countries are allowed."""
    form = request.form
    listed = [one for one in form.get("allowed", "").upper().replace(",", " ").split() if one]

    everywhere = listed == [EVERYWHERE.upper()]

    async def work(conn: Connection, actor: Actor) -> None:
        unknown = [one for one in listed if one not in phones.REGIONS.values() or one == "001"]
        if not listed or (unknown and not everywhere):
            raise Invalid(("allowed", "enum", "Write countries by their ISO codes, such as MZ ZA PT, or any."))
        await policy.configure(
            conn,
            actor,
            smart_encoding=form.get("encoding") in ("smart", "accents"),
            replace_accents=form.get("encoding") == "accents",
            allowed_countries=None if everywhere else list(dict.fromkeys(listed)),
        )

    return await _changed(request, work)


async def change_defaults(request: Request) -> Answer:
    """Change the defaults of sends, and how long texts and messages are kept."""
    form = request.form

    async def work(conn: Connection, actor: Actor) -> None:
        await policy.change_defaults(
            conn,
            actor,
            guarantee=form.get("guarantee") or None,
            validity_seconds=_chosen("validity", form.get("validity", "")),
            text_days=_chosen("text_days", form.get("text_days", "")),
            message_days=_chosen("message_days", form.get("message_days", "")),
            quiet_hours=_quiet(form),
        )

    return await _changed(request, work)


def _quiet(form: Mapping[str, str]) -> str | None:
    chosen = form.get("quiet_hours") or None
    return f"{form.get('quiet_from', '')}-{form.get('quiet_to', '')}" if chosen == OWN_HOURS else chosen


def _chosen(field: str, text: str) -> int | None:
    return figures.within(text, Invalid((field, "enum", "Choose one of those that are offered.")), most=MOST)


async def change_security(request: Request) -> Answer:
    """Change what is required of members."""
    form = request.form
    hours = next((one for one in SESSION_HOURS if str(one) == form.get("session_hours")), None)

    async def work(conn: Connection, actor: Actor) -> None:
        await policy.configure(
            conn,
            actor,
            factor_required=form.get("factor_required") == "yes",
            session_hours=hours,
            reveals=form.get("reveals") == "yes",
            developer_keys=form.get("developer_keys") == "yes" if request.may(permission=OWNERS) else None,
        )
        least, most = send_defaults.APPROVAL
        wrong = Invalid(("approval_above", "range", f"`approval_above` must be from {least} to {most}"))
        above = figures.within(form.get("approval_above", ""), wrong, least=least, most=most)
        await policy.change_defaults(conn, actor, approval_above=above)

    return await _changed(request, work)


async def show_close(request: Request) -> Answer:
    """What closing the organization stops."""
    return Shown(template="organization/settings_close.html", values=await _stops(request))


async def close(request: Request) -> Answer:
    """Close the organization."""
    try:
        confirming.check(request, request.person.organization or "")
    except Invalid as refusal:
        return refused("organization/settings_close.html", refusal, await _stops(request))
    async with request.writing() as conn, conn.transaction():
        await policy.close(conn, request.acting("live"))
    request.services.sessions.forget(request.token)
    return Elsewhere(location="/settings", notice=request.text("The organization is closed."))


async def _changed(request: Request, work: Callable[[Connection, Actor], Awaitable[None]]) -> Answer:
    try:
        async with request.writing() as conn, conn.transaction():
            await work(conn, request.acting("live"))
    except Invalid as refusal:
        return refused("organization/settings.html", worded(refusal, words.SETTINGS_FORM), await _values(request))
    request.services.sessions.forget(request.token)
    return Elsewhere(location="/settings", notice=request.text("The settings are saved."))


async def _values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        known = await organizations.get(conn, id=request.acting("live").organization_id)
        defaults = await send_defaults.get(conn, organization_id=known.id)
    form = request.form
    speech = request.speech
    first, _, last = defaults.quiet_hours.partition("-") if "-" in defaults.quiet_hours else (None, "", None)
    kept = request.services.settings.text_retention_days
    days = {one for one in TEXT_DAYS if one < kept} | ({defaults.text_days} if defaults.text_days else set())
    months = request.services.settings.metadata_retention_months
    message_days = {one for one in MESSAGE_DAYS if one < 31 * months}
    message_days |= {defaults.message_days} if defaults.message_days else set()
    regions = sorted(set(phones.REGIONS.values()) - {"001"}, key=speech.country)
    encoding = "accents" if known.replace_accents else "smart" if known.smart_encoding else "off"
    return {
        "organization": known,
        "name": form.get("name", known.name),
        "country": form.get("country", known.country or ""),
        "countries": [(one, speech.country(one)) for one in regions],
        "zone": form.get("time_zone", known.time_zone or ""),
        "zones": own_account.zones(),
        "encoding": form.get("encoding", encoding),
        "encodings": [(name, request.text(said), request.text(more)) for name, said, more in words.ENCODINGS],
        "allowed": form.get(
            "allowed", EVERYWHERE if known.allowed_countries is None else " ".join(known.allowed_countries)
        ),
        "factor_required": form.get("factor_required") == "yes" if "_security" in form else known.factor_required,
        "reveals": form.get("reveals") == "yes" if "_security" in form else known.reveals,
        "developer_keys": form.get("developer_keys") == "yes" if "_security" in form else known.developer_keys,
        "may_owners": request.may(permission=OWNERS),
        "approval_above": form.get(
            "approval_above", "" if defaults.approval_above is None else str(defaults.approval_above)
        ),
        "guarantee": form.get("guarantee", defaults.guarantee),
        "guarantees": [(name, request.text(said), request.text(more)) for name, said, more in words.GUARANTEES],
        "validity": form.get("validity", str(defaults.validity_seconds or "")),
        "validities": [(str(one), speech.lasted(one)) for one in VALIDITIES],
        "text_days": form.get("text_days", str(defaults.text_days or "")),
        "message_days": form.get("message_days", str(defaults.message_days or "")),
        "quiet": form.get("quiet_hours", defaults.quiet_hours if first is None else OWN_HOURS),
        "quiets": [(name, request.text(said), request.text(more)) for name, said, more in words.QUIET_HOURS],
        "quiet_from": form.get("quiet_from", first or USUAL_HOURS[0]),
        "quiet_to": form.get("quiet_to", last or USUAL_HOURS[1]),
        "kept_days": kept,
        "days": [(str(one), speech.lasted(86_400 * one)) for one in sorted(days)],
        "kept_months": months,
        "days_of_messages": [(str(one), speech.lasted(86_400 * one)) for one in sorted(message_days)],
        "hours": form.get("session_hours", str(known.session_hours or "")),
        "session_hours": [(str(one), speech.lasted(3600 * one)) for one in SESSION_HOURS],
    }


async def _stops(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        found = await policy.stops(conn, request.acting("live"))
    return {"stops": found, "many": MANY, "name": request.person.organization or ""}
