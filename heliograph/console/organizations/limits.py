"""What an organization may do: its state, plan, limits (shown with its request rates) and countries; sealing of its
texts, and how long they are kept; and closing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from heliograph.accounts import organizations, plans, quota, rate_limits, send_defaults, spending
from heliograph.accounts.organizations import Organization, StateKept
from heliograph.accounts.send_defaults import SendDefaults
from heliograph.audit import reasons
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems
from heliograph.console import typed
from heliograph.console.acting import organization
from heliograph.overview.installation import organizations as overview
from heliograph.overview.installation import rates
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.forms import leaving, organization_rules, shortening
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import MONEY_CHANGE, ORGANIZATIONS_CHANGE
from heliograph.retention.shortening import NotAgreed
from heliograph.sealing import text_keys

#: States in the form; suspending and closing have their own pages.
STATES = ("active", "trial", "past_due")

#: Fields of each group; each group is a form of its own.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "plan": ("plan", "allowance", "months"),
    "spending": ("segments", "above"),
    "countries": ("country", "allowed"),
    "state": ("state",),
    "texts": (),
    "kept": ("text_days", "message_days"),
    "rates": rate_limits.BUCKETS,
}

#: Applies the fields of a group.
Work = Callable[[Connection, Organization, Mapping[str, str]], Awaitable[object]]


async def show(request: Request) -> Answer:
    """All limits, each group in a form of its own."""
    return Page(template="organizations/limits.html", values=await _values(request))


async def set_state(request: Request) -> Answer:
    """Set the state: trial, active or past due."""

    async def work(conn: Connection, one: Organization, given: Mapping[str, str]) -> None:
        if given["state"] not in STATES:
            raise Invalid(("state", "enum", "Choose one of these states."))
        stopped, by = organizations.STOPPED, request.principal
        try:
            await organizations.set_state(conn, id=one.id, state=given["state"], unless=stopped, by=by)
        except StateKept:
            # A page opened before the suspension must not lift it.
            raise Invalid(("state", "state", "It was suspended or closed in the meantime: resume it first.")) from None

    return await _changed(request, "state", work)


async def set_plan(request: Request) -> Answer:
    """Put it on a plan, whose periods grant quota; or take it off. Unchanged terms begin no new period."""

    async def work(conn: Connection, one: Organization, given: Mapping[str, str]) -> None:
        if request.form.get("act") == "end":
            await plans.unsubscribe(conn, one.id, by=request.principal)
            return
        wrong, months, allowance = Problems(), None, None
        with wrong.gathering():
            months = typed.amount(given["months"], "months")
        with wrong.gathering():
            allowance = typed.amount(given["allowance"], "allowance")
        wanted = plans.Terms(given["plan"].strip(), allowance, 1 if months is None else months)
        with wrong.gathering():
            plans.check(wanted)
        wrong.report()
        if wanted != await plans.terms(conn, one.id):
            await plans.subscribe(conn, one.id, wanted, now=clock.now(), by=request.principal)

    return await _changed(request, "plan", work)


async def set_limits(request: Request) -> Answer:
    """Set the segments per day, and the messages per day above which it is alerted; an empty field removes either."""

    async def work(conn: Connection, one: Organization, given: Mapping[str, str]) -> None:
        known, wrong = await _own_limit(conn, one), Problems()
        with wrong.gathering():
            segments = typed.amount(given["segments"], "segments")
            if segments != (known and known.segments):
                await spending.limit(conn, one.id, segments=segments, by=request.principal)
        with wrong.gathering():
            above = typed.amount(given["above"], "above")
            if above != await quota.alert(conn, one.id):
                await quota.set_alert(conn, one.id, above=above, by=request.principal)
        wrong.report()

    return await _changed(request, "spending", work)


async def set_countries(request: Request) -> Answer:
    """Set its own country, and those that it may send to."""

    async def work(conn: Connection, one: Organization, given: Mapping[str, str]) -> None:
        wrong, allowed = Problems(), one.allowed_countries
        with wrong.gathering():
            allowed = organization_rules.countries(given["allowed"])
        with wrong.gathering():
            country = given["country"].strip() or None
            await organizations.configure(
                conn, id=one.id, country=country, allowed_countries=allowed, by=request.principal
            )
        wrong.report()

    return await _changed(request, "countries", work)


async def set_sealing(request: Request) -> Answer:
    """Store its texts sealed from now on, or no longer."""

    async def work(conn: Connection, one: Organization, given: Mapping[str, str]) -> None:
        on = request.form.get("seal") == "on"
        if on and one.state == "closed":
            raise Invalid(("seal", "state", "A closed organization seals no texts: open it first."))
        await text_keys.switch(conn, organization_id=one.id, on=on, by=request.principal)

    return await _changed(request, "texts", work)


async def set_kept(request: Request) -> Answer:
    """Set how long its texts and messages are kept, if shorter than the installation's time."""

    async def work(conn: Connection, one: Organization, given: Mapping[str, str]) -> None:
        wrong, days = Problems(), dict[str, int | None]()
        for name, bounds in (("text_days", send_defaults.TEXT_DAYS), ("message_days", send_defaults.MESSAGE_DAYS)):
            with wrong.gathering():
                days[name] = _days(request, given, name, bounds)
        wrong.report()
        changes = partial(
            send_defaults.change,
            conn,
            organization_id=one.id,
            text_days=days["text_days"],
            message_days=days["message_days"],
            by=request.principal,
        )
        await shortening.change(request, conn, one.id, changes)

    return await _changed(request, "kept", work)


async def set_rates(request: Request) -> Answer:
    """Set the requests per minute of each of its keys, if not the installation's."""

    async def work(conn: Connection, one: Organization, given: Mapping[str, str]) -> None:
        least, most = rate_limits.BOUNDS
        said = request.text(
            "Enter a number of requests from %(least)s to %(most)s.", least=least, most=request.locale.number(most)
        )
        wrong, limits = Problems(), dict[str, int | None]()
        for bucket in rate_limits.BUCKETS:
            with wrong.gathering():
                limits[bucket] = typed.within(given[bucket], bucket, rate_limits.BOUNDS, said)
        wrong.report()
        await rate_limits.change(conn, organization_id=one.id, limits=limits, by=request.principal)

    return await _changed(request, "rates", work)


async def show_close(request: Request) -> Answer:
    """What closing it stops."""
    return Page(template="organizations/close.html", values=await _stops(request))


async def close(request: Request) -> Answer:
    """Close it: nothing is sent or changed any more; operators can reopen it."""
    reason = reasons.normalized(request.form.get("reason", ""))
    values = await _stops(request)
    one: Organization = values["one"]
    try:
        wrong = Problems()
        if reason is None:
            said = "Give a reason of at most 500 characters: it is kept in the audit log."
            wrong.add("reason", "length", said)
        with wrong.gathering():
            confirming.check(request, one.name)
        wrong.report()
        by: Principal = msgspec.structs.replace(request.principal, reason=reason)
        async with request.writing() as conn:
            await organizations.set_state(conn, id=one.id, state="closed", by=by)
    except Invalid as refusal:
        return refused("organizations/close.html", refusal, values)
    return Redirect(location=f"/console/organizations/{one.id}", notice=request.text("The organization is closed."))


async def _stops(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        stops = await overview.stops(conn, id=one.id)
        sealed = await text_keys.get(conn, organization_id=one.id)
    return {"one": one, "stops": stops, "is_sealed": sealed.key == "kept", "reason": request.form.get("reason", "")}


async def _changed(request: Request, group: str, work: Work) -> Answer:
    try:
        async with request.writing() as conn, conn.transaction():
            one = await organization(conn, request, "id")
            await work(conn, one, leaving.typed(request.form, GROUPS[group], _shown(one, await _known(conn, one))))
    except NotAgreed as asks:
        return shortening.ask(request, asks, back=f"/console/organizations/{request.id('id')}/limits")
    except Invalid as refusal:
        return refused("organizations/limits.html", form_errors(refusal, typed.WRONG), await _values(request, group))
    return Redirect(location=f"/console/organizations/{one.id}/limits", notice=request.text("Saved."))


def _days(request: Request, given: Mapping[str, str], name: str, bounds: tuple[int, int]) -> int | None:
    """The typed number of days; None: as long as the installation keeps them. Raises Invalid."""
    said = request.text("Enter a number of days from %(least)s to %(most)s.", least=bounds[0], most=bounds[1])
    return typed.within(given[name], name, bounds, said)


async def _own_limit(conn: Connection, one: Organization) -> spending.Limit | None:
    return next((known for known in await spending.limits(conn, one.id) if known.key_id is None), None)


class _Known(msgspec.Struct, frozen=True):
    """What the fields are filled with, except for the organization itself."""

    limit: spending.Limit | None
    above: int | None
    kept: SendDefaults
    rates: Mapping[str, int | None]
    terms: plans.Terms | None


async def _known(conn: Connection, one: Organization) -> _Known:
    return _Known(
        await _own_limit(conn, one),
        await quota.alert(conn, one.id),
        await send_defaults.get(conn, organization_id=one.id),
        msgspec.structs.asdict(await rate_limits.get(conn, organization_id=one.id)),
        await plans.terms(conn, one.id),
    )


def _shown(one: Organization, known: _Known) -> dict[str, str]:
    """The current values of all fields."""
    limit, above, kept, terms = known.limit, known.above, known.kept, known.terms
    return {
        "state": one.state,
        "plan": terms.plan if terms else "",
        "allowance": "" if terms is None or terms.allowance is None else str(terms.allowance),
        "months": str(terms.months if terms else 1),
        "segments": "" if limit is None else str(limit.segments),
        "above": "" if above is None else str(above),
        "text_days": str(kept.text_days or ""),
        "message_days": str(kept.message_days or ""),
        "country": one.country or "",
        "allowed": organization_rules.shown_countries(one),
        **{bucket: str(known.rates[bucket] or "") for bucket in rate_limits.BUCKETS},
    }


async def _values(request: Request, group: str = "") -> dict[str, Any]:
    """`group`: the one that was submitted and refused."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        known = await _known(conn, one)
        rated = await rates.read(conn, request.services.settings, one.id)
        sealed = await text_keys.get(conn, organization_id=one.id)
    settings, shown = request.services.settings, _shown(one, known)
    given = shown | (leaving.typed(request.form, GROUPS[group], shown) if group else {})
    return given | {
        "one": one,
        "was": {name: leaving.written({field: shown[field] for field in fields}) for name, fields in GROUPS.items()},
        "terms": known.terms,
        "limit": known.limit,
        "sealed": sealed,
        "rates": rated,
        "buckets": words.BUCKETS,
        "labels": {bucket: request.text(called) for bucket, called in words.BUCKETS.items()},
        "by_bucket": [
            (bucket, usual, known.rates[bucket], given[bucket])
            for bucket, usual in rate_limits.of_installation(settings).items()
        ],
        "states": [(name, request.text(words.ORGANIZATION_STATES[name])) for name in STATES],
        "text_days_now": known.kept.text_days,
        "message_days_now": known.kept.message_days,
        "kept_days": settings.text_retention_days,
        "kept_months": settings.metadata_retention_months,
        "may_change": request.may(permission=ORGANIZATIONS_CHANGE),
        "may_grant": request.may(permission=MONEY_CHANGE),
    }
