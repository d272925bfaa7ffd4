"""Trying a supplier in service: a connection test, a test message, and the setting that fixes what this reveals."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from heliograph.audit import recording as audit
from heliograph.base.crypto import Unsealable
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.console.suppliers import wizard_message
from heliograph.console.suppliers.listing import HERE, find
from heliograph.console.suppliers.wizard import PROBED
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.management import drafts, following, trying
from heliograph.sms.management.drafts import Trial
from heliograph.sms.management.following import Followed, Told, TrialReceipt
from heliograph.suppliers import kinds, probing
from heliograph.suppliers.contract import Account
from heliograph.suppliers.probing import Step


async def show(request: Request) -> Answer:
    """The form, and the progress of the last test message."""
    values = await _values(request)
    template = "suppliers/wizard_message_live.html" if request.is_fragment else "suppliers/supplier_test.html"
    return Page(template=template, values=values)


async def send(request: Request) -> Answer:
    """Send it outside the queue, in parallel with the workers; only the result is stored."""
    try:
        number, sender, text = wizard_message.typed(request)
        await begin(request, number, sender, text)
    except Invalid as refusal:
        return refused("suppliers/supplier_test.html", refusal, await _values(request))
    return Redirect(location=f"{HERE}/{request.id()}/test")


async def show_reach(request: Request) -> Answer:
    """What the connection test does, before it runs."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
    return Page(template="suppliers/supplier_reach.html", values=_reached(request, one, []))


async def reach(request: Request) -> Answer:
    """Resolve, connect, TLS, bind, enquire, unbind, as far as this succeeds: no message is sent."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
    try:
        if request.form.get("session") != "more":
            async with request.reading() as conn:
                await trying.demand_session(conn, one)
        found = await probing.probe(one.kind, _account(request, one, field="session"))
    except Invalid as refusal:
        return refused("suppliers/supplier_reach.html", refusal, _reached(request, one, []))
    wrong = next((step.name for step in found if not step.ok), "")
    after = {"verdict": "not reached" if wrong else "reached", "code": wrong}
    async with request.writing() as conn:
        await audit.record(conn, request.principal, "supplier.tested", object_id=one.id, name=one.name, after=after)
    return Page(template="suppliers/supplier_reach.html", values=_reached(request, one, found))


async def begin(request: Request, number: str, sender: str, text: str, *, is_long: bool = False) -> None:
    """Send a test message through the supplier in the address, and have it followed. Raises Invalid."""
    id = request.id()
    async with request.reading() as conn:
        one = await find(conn, id)
        wizard_message.demand_ended(await trying.last(conn, supplier_id=id))
        if request.form.get("session") != "more":
            await trying.demand_session(conn, one)
        since = await trying.begins(conn)
    account = _account(request, one)
    to = drafts.masked(number)
    message = following.submission(number, text, sender)

    async def start(conn: Connection, trial: Trial) -> None:
        wizard_message.demand_ended(await trying.last(conn, supplier_id=id, is_held=True))
        await trying.start(conn, trial, supplier_id=id)

    async def keep(conn: Connection, trial: Trial) -> None:
        await trying.keep(conn, trial, supplier_id=id)

    async def work(told: Told) -> Followed:
        async def receipts(ids: tuple[str, ...]) -> list[TrialReceipt]:
            async with request.services.pool.acquire() as conn:
                return await trying.list_receipts(conn, one, message, ids, since=since)

        return await trying.follow(one, account, message, told, receipts)

    async def ended(found: Followed) -> None:
        async with request.writing() as conn:
            await _record(request, conn, one, to, found)

    await wizard_message.begin(request, to, one.name, start, keep, work, ended, is_long=is_long)


async def cure(request: Request) -> Answer:
    """Change the setting that makes the ids in response and receipt match."""
    id = request.id()
    key = suppliers.seal_key(request.services.settings)
    async with request.writing() as conn:
        done = await trying.cure(conn, key, supplier_id=id, by=request.principal)
        trial = await trying.last(conn, supplier_id=id)
    said = request.text("Saved: answer and receipt now name the same id.") if done else ""
    step = "long" if trial is not None and trial.is_long else "test"
    return Redirect(location=f"{HERE}/{id}/{step}", notice=said)


async def _record(request: Request, conn: Connection, one: Supplier, to: str, found: Followed) -> None:
    after = {"recipient": to, "verdict": found.verdict or "not sent", "code": found.code}
    await audit.record(conn, request.principal, "supplier.tested", object_id=one.id, name=one.name, after=after)


def _account(request: Request, one: Supplier, *, field: str = "to") -> Account:
    settings = request.services.settings
    try:
        secret = suppliers.open_secret(suppliers.seal_key(settings), one)
    except Unsealable:
        raise Invalid((field, "sealed", "Its password was sealed with another secret key. Replace it.")) from None
    return Account(one.id, one.settings, secret, addresses.address(settings, one.id))


def _reached(request: Request, one: Supplier, steps: list[Step]) -> dict[str, Any]:
    names = {name: request.text(said) for name, said in PROBED.items()}
    return {"one": one, "is_smpp": one.kind == kinds.SMPP, "steps": steps, "names": names}


async def _values(request: Request) -> dict[str, Any]:
    id: UUID = request.id()
    async with request.reading() as conn:
        one = await find(conn, id)
        trial = await trying.last(conn, supplier_id=id)
    trial = None if trial is not None and trial.is_long else trial
    return wizard_message.followed(request, trial) | {"one": one, "here_of": f"{HERE}/{id}"}
