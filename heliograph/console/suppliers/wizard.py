"""Adding a supplier step by step: kind, connection with its test, limits, dialect, a test message, a long one,
place.

Each step has an address and is saved as it is left, so that it can be resumed. The supplier carries nothing until the
last step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.errors import Invalid, NotFound
from heliograph.console.suppliers.listing import find
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.pages.routes import Handler
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import suppliers
from heliograph.sms.management import changing, drafts, forms, options
from heliograph.sms.management.drafts import Draft
from heliograph.sms.management.sections import sections
from heliograph.suppliers import kinds, probing
from heliograph.suppliers.contract import Account

LIST = "/console/suppliers"
#: Steps in order, with their titles.
STEPS = (
    ("connection", "Connection"),
    ("test", "Test"),
    ("limits", "Limits"),
    ("dialect", "Dialect"),
    ("message", "Test message"),
    ("long", "Long message"),
    ("place", "Place"),
)
#: Settings of an SMPP account's dialect, with the question for each; other kinds have a field for each that is left.
QUESTIONS: Mapping[str, str] = {
    "resp_id_base": "How does it write a message's id in its answer? The test message finds it out.",
    "dlr_id_base": "How does it write the id in receipts?",
    "default_alphabet": "Which alphabet does it take data_coding 0 for?",
    "long_messages": "How does it want the parts of long messages joined?",
    "registered_delivery": "Which receipts does it send?",
    "handles_stop": "Does it reply to STOP and HELP automatically?",
    "country": "Does it write handset numbers without a country code? Which country do they belong to?",
}
#: Names of the steps of a connection test.
PROBED: Mapping[str, str] = {
    probing.RESOLVE: "Resolve the address",
    probing.CONNECT: "Connect",
    probing.TLS: "Negotiate TLS",
    probing.BIND: "Sign in (bind)",
    probing.ENQUIRE: "Check that it is there (enquire_link)",
    probing.UNBIND: "Sign out (unbind)",
}


async def show_new(request: Request) -> Answer:
    """The choice of kind."""
    return Page(template="suppliers/wizard_new.html", values=_kinds(request))


async def begin(request: Request) -> Answer:
    """Create a draft, and go to its connection."""
    try:
        async with request.writing() as conn:
            id = await drafts.begin(conn, name=request.form.get("name", ""), kind=request.form.get("kind", ""))
    except Invalid as refusal:
        return refused("suppliers/wizard_new.html", refusal, _kinds(request))
    return Redirect(location=_path(id, "connection"))


async def go_on(request: Request) -> Answer:
    """Resume a draft at the step where it was left."""
    draft = await read(request)
    if draft.is_complete and draft.trial is not None:
        step = "long" if draft.trial.is_long else "message"
    else:
        step = "connection" if not draft.is_complete else "test" if not draft.steps else "message"
    return Redirect(location=_path(draft.id, step))


async def show_connection(request: Request) -> Answer:
    """The account's address and password."""
    draft = await read(request)
    return Page(template="suppliers/wizard_fields.html", values=_connection(draft, kept(draft)))


async def save_connection(request: Request) -> Answer:
    """Save it, and go to the test."""
    draft, form = await read(request), request.form
    given = kept(draft) | {name: form[name] for name in kept(draft) if name in form}
    try:
        secrets = {name: form[name] for name in changing.secrets(draft.kind) if form.get(name)}
        key = suppliers.seal_key(request.services.settings)
        kept_secret = drafts.opened(key, draft)
        if kept_secret is None and not secrets:
            raise Invalid((_secret(draft), "required", "The connection needs its password."))
        before = draft.settings
        draft = msgspec.structs.replace(draft, settings=_read(draft, given))
        async with request.writing() as conn, conn.transaction():
            sealed = options.with_secrets(draft.kind, kept_secret, secrets)
            await drafts.save(conn, key, draft, secret=None if sealed == kept_secret else sealed)
            if draft.settings != before or sealed != kept_secret:
                await drafts.forget_tests(conn, draft.id)
    except Invalid as refusal:
        return refused("suppliers/wizard_fields.html", refusal, _connection(draft, given))
    return Redirect(location=_path(draft.id, "test"))


async def show_test(request: Request) -> Answer:
    """The results of the last connection test, step by step."""
    draft = await read(request)
    names = {name: request.text(said) for name, said in PROBED.items()}
    return Page(template="suppliers/wizard_test.html", values=steps(draft, "test") | {"names": names})


async def test(request: Request) -> Answer:
    """Resolve, connect, TLS, bind, enquire, unbind, as far as this succeeds."""
    draft = await read(request)
    if not draft.is_complete:
        return Redirect(location=_path(draft.id, "connection"))
    try:
        tested = account(request, draft, field=_secret(draft))
    except Invalid as refusal:
        return refused("suppliers/wizard_fields.html", refusal, _connection(draft, kept(draft)))
    found = await probing.probe(draft.kind, tested)
    async with request.writing() as conn:
        await drafts.keep_steps(conn, draft, found)
    return Redirect(location=_path(draft.id, "test"))


async def show_limits(request: Request) -> Answer:
    """The form for sessions, window and rate."""
    draft = await read(request)
    return Page(template="suppliers/wizard_fields.html", values=_limits(draft, kept(draft)))


async def save_limits(request: Request) -> Answer:
    """Save the limits."""
    return await _save(request, "limits", "dialect")


async def show_dialect(request: Request) -> Answer:
    """Questions about its dialect of the protocol."""
    draft = await read(request)
    return Page(template="suppliers/wizard_fields.html", values=_dialect(draft, kept(draft)))


async def save_dialect(request: Request) -> Answer:
    """Save the answers."""
    return await _save(request, "dialect", "message")


async def discard(request: Request) -> Answer:
    """Discard the draft."""
    async with request.writing() as conn:
        await drafts.get(conn, request.id())
        await drafts.drop(conn, request.id())
    return Redirect(location=LIST, notice=request.text("It is discarded."))


def unless_added(handler: Handler) -> Handler:
    """A step of a draft. Whoever goes back to one after the supplier was added is led to the supplier, and a form for a
    draft that was discarded leads to the suppliers."""

    @wraps(handler)
    async def step(request: Request) -> Answer:
        try:
            return await handler(request)
        except NotFound as gone:
            if request.is_fragment:
                raise
            try:
                async with request.reading() as conn:
                    made = await find(conn, request.id())
            except NotFound:
                if request.method != "POST":
                    raise
                return Redirect(location=LIST, notice=request.text(gone.message), is_refusal=True)
            return Redirect(location=f"{LIST}/{made.id}")

    return step


async def read(request: Request) -> Draft:
    """The draft in the address. Raises NotFound."""
    async with request.reading() as conn:
        return await drafts.get(conn, request.id())


def account(request: Request, draft: Draft, *, field: str) -> Account:
    """The account as a connector needs it. Raises Invalid if it is incomplete, or if its password cannot be opened
    (`field`)."""
    settings = request.services.settings
    options.check(draft.kind, draft.settings)
    secret = drafts.open_secret(suppliers.seal_key(settings), draft, field=field)
    return Account(draft.id, draft.settings, secret, addresses.address(settings, draft.id))


def _secret(draft: Draft) -> str:
    """The name of the field of its account's own secret."""
    return next(iter(changing.secrets(draft.kind)))


def steps(draft: Draft, here: str) -> dict[str, Any]:
    """The values common to the pages of all steps."""
    return {"draft": draft, "here": here, "steps": STEPS, "action": _path(draft.id, here)}


async def recorded(request: Request, draft: Draft, to: str, verdict: str, code: str) -> None:
    """Record in the audit log that a test message was sent."""
    async with request.writing() as conn:
        after = {"recipient": to, "verdict": verdict, "code": code}
        await audit.record(conn, request.principal, "supplier.tested", object_id=draft.id, name=draft.name, after=after)


async def _save(request: Request, step: str, next_step: str) -> Answer:
    draft, form = await read(request), request.form
    given = kept(draft) | {name: form[name] for name in kept(draft) if name in form}
    values = {"limits": _limits, "dialect": _dialect}[step]
    try:
        draft = placed(msgspec.structs.replace(draft, settings=_read(draft, given)), given)
        async with request.writing() as conn:
            await drafts.save(conn, suppliers.seal_key(request.services.settings), draft)
    except Invalid as refusal:
        return refused("suppliers/wizard_fields.html", refusal, values(draft, given))
    return Redirect(location=_path(draft.id, next_step))


def _path(id: UUID, step: str) -> str:
    return f"/console/drafts/{id}/{step}"


def _kinds(request: Request) -> dict[str, Any]:
    named = [(kinds.SMPP, "SMPP 3.4", request.text("A supplier's SMSC: the usual way to networks."))]
    named += [(name, request.text(kind.title), request.text("Over HTTP.")) for name, kind in kinds.HTTP.items()]
    return {"kinds": named, "kind": request.form.get("kind", kinds.SMPP), "name": request.form.get("name", "")}


def kept(draft: Draft) -> dict[str, str]:
    """Every field as it was saved, by its name in forms."""
    settings = {forms.OPTION + name: text for name, text in forms.shown(draft.kind, draft.settings).items()}
    return settings | {name: options.written(value) for name, value in draft.place.items()} | {"name": draft.name}


def _read(draft: Draft, given: Mapping[str, str]) -> dict[str, Any]:
    """The settings with what was typed applied. Raises Invalid with the names of the form's fields."""
    typed = {name.removeprefix(forms.OPTION): text for name, text in given.items() if name.startswith(forms.OPTION)}
    try:
        return forms.read(draft.kind, draft.settings, typed)
    except Invalid as refusal:
        listed = refusal.details["fields"]
        raise Invalid(*((forms.OPTION + one["field"], one["issue"], one["message"]) for one in listed)) from None


def placed(draft: Draft, given: Mapping[str, str]) -> Draft:
    """The draft with the typed name and place applied. Raises Invalid."""
    place = options.checked_place(
        draft.place | {"name": draft.name}, {name: given[name] for name in forms.ROW if name in given}
    )
    return msgspec.structs.replace(draft, name=place.pop("name"), place=place)


def _connection(draft: Draft, given: Mapping[str, str]) -> dict[str, Any]:
    return _asked(draft, "connection", given) | {"secrets": changing.secrets(draft.kind)}


def _limits(draft: Draft, given: Mapping[str, str]) -> dict[str, Any]:
    return _asked(draft, "limits", given) | {"columns": ["sessions"]}


def _dialect(draft: Draft, given: Mapping[str, str]) -> dict[str, Any]:
    if draft.kind != kinds.SMPP:
        return _asked(draft, "dialect", given, group="protocol")
    asked = [(one, QUESTIONS[one.name]) for one in forms.fields(draft.kind) if one.name in QUESTIONS]
    return _asked(draft, "dialect", given, group="") | {"asked": asked, "columns": ["parts"]}


def _asked(draft: Draft, step: str, given: Mapping[str, str], *, group: str | None = None) -> dict[str, Any]:
    return steps(draft, step) | {
        "asked": [],
        "sections": sections(draft.kind, given, (step if group is None else group,)),
        "given": given,
        "prefix": forms.OPTION,
        "secrets": {},
        "columns": [],
    }
