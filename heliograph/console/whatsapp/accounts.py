"""WhatsApp: accounts, with what prevents each from sending or receiving, their numbers and their templates."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid_in
from heliograph.console.acting import organization
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.lists import pagination
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC_CHANGE
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient
from heliograph.whatsapp import checks, reads
from heliograph.whatsapp.dispatch import holds
from heliograph.whatsapp.mirror import accounts, apps, onboarding, sync, template_sync, warnings
from heliograph.whatsapp.mirror.accounts import BusinessAccount
from heliograph.whatsapp.mirror.reading import Mirror

HERE = "/console/whatsapp"
#: Accounts listed, and the longest search for a template: Meta's names have at most as many characters.
MOST, LONGEST_SEARCH = 200, 512


async def show(request: Request) -> Answer:
    """All accounts, by organization."""
    key = apps.seal_key(request.services.settings)
    async with request.reading() as conn:
        standing = await onboarding.standing(conn)
    rows = [(one, _worst(checks.of_account(one, key))) for one in standing[:MOST]]
    values = {"rows": rows, "is_cut": len(standing) > MOST, "may_change": request.may(permission=TRAFFIC_CHANGE)}
    return Page(template="whatsapp/accounts.html", values=values)


async def show_one(request: Request) -> Answer:
    """One account, with the values to enter at Meta."""
    values = await _values(request)
    template = "whatsapp/account_live.html" if request.is_fragment else "whatsapp/account.html"
    return Page(template=template, values=values)


async def show_pause(request: Request) -> Answer:
    """What pausing it would stop."""
    return Page(template="whatsapp/pause.html", values=await _values(request))


async def pause(request: Request) -> Answer:
    """Pause it: nothing is sent from its numbers until it is resumed."""
    return await _set(request, "paused", request.text("It is paused: nothing is sent from its numbers."))


async def resume(request: Request) -> Answer:
    """Let it send again."""
    return await _set(request, "active", request.text("It is sending again."))


async def show_remove(request: Request) -> Answer:
    """What removing it would delete."""
    return Page(template="whatsapp/remove.html", values=await _values(request))


async def remove(request: Request) -> Answer:
    """Remove it with its token, once its id at Meta is typed to confirm."""
    try:
        async with request.writing() as conn:
            of, one = await _account(conn, request)
            confirming.check(request, one.waba_id)
            await accounts.set_state(conn, organization_id=of, account_id=one.id, state="removed", by=request.principal)
    except Invalid as refusal:
        return refused("whatsapp/remove.html", refusal, await _values(request))
    return Redirect(location=HERE, notice=request.text("%(name)s is removed.", name=one.name or one.waba_id))


async def release(request: Request) -> Answer:
    """End its hold and those of its numbers: at first, only a few messages are sent."""
    async with request.writing() as conn:
        of, one = await _account(conn, request)
        released = await holds.release_account(conn, of, one.id, by=request.principal)
    return _back(request, _released(request, released))


async def acknowledge(request: Request) -> Answer:
    """Mark its warnings as dealt with at Meta."""
    async with request.writing() as conn:
        of, one = await _account(conn, request)
        await warnings.acknowledge(conn, of, one.id, by=request.principal)
    return _back(request, request.text("The warnings are gone; one that Meta repeats comes back."))


async def sync_now(request: Request) -> Answer:
    """Read its credential, numbers and templates from Meta now."""
    async with request.writing() as conn:
        of, one = await _account(conn, request)
    mirror = Mirror(request.services.pool, key=apps.seal_key(request.services.settings))
    try:
        done = await mirror.sync(of, one.id)
    except Invalid as refusal:
        return await _refused(request, refusal)
    finally:
        await mirror.close()
    problems = [] if done is None else list(sync.problems_of(done[0]))
    if problems:
        return _back(request, request.text("Meta answered: %(problems)s", problems="; ".join(problems)))
    return _back(request, request.text("It has been read again."))


async def subscribe(request: Request) -> Answer:
    """Have Meta send its callbacks here."""
    key = apps.seal_key(request.services.settings)
    try:
        async with request.writing() as conn:
            _, one = await _account(conn, request)
            client = CloudClient(one.base_url, one.api_version)
            try:
                await onboarding.subscribe(conn, key, client, account=one, by=request.principal)
            finally:
                await client.close()
    except Invalid as refusal:
        return await _refused(request, refusal)
    return _back(request, request.text("Meta sends its callbacks here now."))


async def change_token(request: Request) -> Answer:
    """Replace the token, once Meta has accepted the new one; messages waiting for it are then sent."""
    key, token = apps.seal_key(request.services.settings), request.form.get("token", "").strip()
    try:
        if not token:
            raise Invalid(("token", "required", "Paste the token."))
        async with request.writing() as conn:
            _, one = await _account(conn, request)
            client = CloudClient(one.base_url, one.api_version)
            try:
                await onboarding.change_token(conn, key, client, account=one, token=token, by=request.principal)
            finally:
                await client.close()
    except Invalid as refusal:
        return await _refused(request, refusal)
    return _back(request, request.text("The token works, and what waited for it is being sent."))


async def release_number(request: Request) -> Answer:
    """End the hold of one number; its account's hold stays."""
    async with request.writing() as conn:
        of = await organization(conn, request)
        number = await onboarding.find_number(conn, of.id, str(request.id()))
        released = await holds.release_number(conn, of.id, number["id"], by=request.principal)
        account = await onboarding.find_account(conn, of.id, number["waba_id"])
    return Redirect(location=f"{HERE}/accounts/{of.id}/{account.id}", notice=_released(request, released))


async def set_template(request: Request) -> Answer:
    """Hide a template from customers, or show it again."""
    disabled = request.form.get("do") != "enable"
    async with request.writing() as conn:
        of = await organization(conn, request)
        (one,) = await onboarding.find_templates(conn, of.id, name=str(request.id()), language=None, waba_id=None)
        await template_sync.set_disabled(conn, of.id, one["id"], disabled=disabled, by=request.principal)
        account = await onboarding.find_account(conn, of.id, one["waba_id"])
    said = (
        request.text("It is disabled: sends with it are refused.")
        if disabled
        else request.text("It can be sent again.")
    )
    # Back to the page of templates on which it was pressed.
    kept = {name: request.query[name] for name in ("q", "after") if request.query.get(name)}
    return Redirect(location=request.to(f"{HERE}/accounts/{of.id}/{account.id}", **kept), notice=said)


async def _account(conn: Connection, request: Request) -> tuple[UUID, BusinessAccount]:
    """(organization's id, account). Raises NotFound."""
    of = await organization(conn, request)
    return of.id, await onboarding.find_account(conn, of.id, str(request.id()))


async def _set(request: Request, state: str, said: str) -> Answer:
    async with request.writing() as conn:
        of, one = await _account(conn, request)
        await accounts.set_state(conn, organization_id=of, account_id=one.id, state=state, by=request.principal)
    return _back(request, said)


def _back(request: Request, said: str) -> Redirect:
    where = f"{HERE}/accounts/{request.id('organization')}/{request.id()}"
    return Redirect(location=where, notice=said)


async def _refused(request: Request, refusal: Invalid) -> Page:
    return Page(template="whatsapp/account.html", values=await _values(request), status=422, refusal=refusal)


def _released(request: Request, released: bool) -> str:
    if released:
        return request.text("The hold is over: a few messages go first, then the rest.")
    return request.text("Nothing holds it here.")


async def _values(request: Request) -> dict[str, Any]:
    settings = request.services.settings
    key = apps.seal_key(settings)
    search = request.query.get("q", "").strip().lower()[:LONGEST_SEARCH].replace("\0", "")
    after, size = uuid_in(request.query.get("after", "")), pagination.size(request)
    async with request.reading() as conn:
        of = await organization(conn, request)
        row = next((one for one in await onboarding.accounts_of(conn, of.id) if one["id"] == request.id()), None)
        if row is None:
            raise NotFound
        standing = next(one for one in await onboarding.standing(conn) if one["id"] == row["id"])
        numbers = await onboarding.numbers_of(conn, of.id)
        templates = await onboarding.templates_of(
            conn, of.id, account_id=row["id"], search=search, after=after, limit=size + 1
        )
        _, verify_token = await apps.shown(conn, key, row["app"])
    may_change = request.may(permission=TRAFFIC_CHANGE)
    return {
        "of": of,
        "one": row,
        "checks": checks.of_account(standing, key),
        "numbers": [one for one in numbers if one["waba_id"] == row["waba_id"]],
        "templates": [one | {"rejection_reason": reads.reason(one["rejection_reason"])} for one in templates[:size]],
        "q": search,
        "after": after,
        "next": f"{request.again(after=templates[size - 1]['id'])}#templates" if len(templates) > size else None,
        "first": request.again(after=""),
        "size": size,
        "callback_url": apps.callback_url(settings, row["app"]),
        "needs_address": not settings.public_url,
        "verify_token": verify_token if may_change else None,
        "fields_at_meta": ", ".join(onboarding.FIELDS),
        "may_change": may_change,
    }


def _worst(found: list[Any]) -> Any:
    order = {"failed": 0, "warning": 1, "ok": 2}
    return min(found, key=lambda one: order[one.state])
