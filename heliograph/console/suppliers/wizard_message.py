"""The wizard's test message: sent to a handset, and followed live through attempt, response and receipt.

It runs in the background of this process, which stores the progress in the draft; the page polls for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems
from heliograph.base.process.settings import SettingsError
from heliograph.base.sentences import quoted
from heliograph.console.suppliers import wizard
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.sms.dispatch import suppliers
from heliograph.sms.management import drafts, following
from heliograph.sms.management.drafts import Draft, Trial
from heliograph.sms.management.following import Followed, Told
from heliograph.suppliers.settings import SettingError

log = structlog.get_logger()

#: Seconds after which it has ended in any case.
LONGEST = 180.0
#: Running tasks: an unreferenced task could be garbage-collected.
_RUNNING: set[asyncio.Task[None]] = set()


async def show(request: Request) -> Answer:
    """The form, and the progress of the last test message."""
    draft = await wizard.read(request)
    template = "suppliers/wizard_message_live.html" if request.is_fragment else "suppliers/wizard_message.html"
    return Page(template=template, values=_values(request, draft))


async def send(request: Request) -> Answer:
    """Send it outside the queue; only the result is stored."""
    draft = await wizard.read(request)
    try:
        number, sender, text = typed(request)
        demand_idle(draft)
        await try_draft(request, draft, number, sender, text)
    except Invalid as refusal:
        return refused("suppliers/wizard_message.html", refusal, _values(request, draft))
    return Redirect(location=f"/console/drafts/{draft.id}/message")


def demand_idle(draft: Draft) -> None:
    """Raises Invalid if its last test message is still being followed, or if there is nothing to send one to yet."""
    demand_ended(draft.trial)
    if not draft.is_complete:
        raise Invalid(("to", "incomplete", "The connection is not complete yet."))


def demand_ended(trial: Trial | None) -> None:
    """Raises Invalid if a test message is still being followed."""
    if runs(trial):
        raise Invalid(("to", "running", "The last test message is still being followed."))


async def try_draft(
    request: Request, draft: Draft, number: str, sender: str, text: str, *, is_long: bool = False
) -> None:
    """Send a test message through the supplier being added, and have it followed. Raises Invalid."""
    account = wizard.account(request, draft, field="to")
    to = drafts.masked(number)
    message = following.submission(number, text, sender)

    async def start(conn: Connection, trial: Trial) -> None:
        demand_idle(await drafts.lock(conn, draft.id))
        await drafts.start_trial(conn, draft.id, trial)

    async def keep(conn: Connection, trial: Trial) -> None:
        await drafts.keep_trial(conn, draft.id, trial)

    async def work(told: Told) -> Followed:
        return await following.follow(draft.kind, account, message, told)

    async def ended(found: Followed) -> None:
        await wizard.recorded(request, draft, to, found.verdict or "not sent", found.code)

    await begin(request, to, draft.name, start, keep, work, ended, is_long=is_long)


def typed(request: Request) -> tuple[str, str, str]:
    """(number, sender, text) of a test message. Raises Invalid."""
    text, wrong = request.form.get("text", "").strip(), Problems()
    with wrong.gathering():
        number, sender = addressed(request)
    if not 1 <= len(text) <= 160:
        wrong.add("text", "length", "A test message must have 1 to 160 characters.")
    wrong.report()
    return number, sender, text


def addressed(request: Request) -> tuple[str, str]:
    """(number, sender) of a test message. Raises Invalid."""
    form = request.form
    # A national number is also some other country's: 841234567 would be sent to Viet Nam, and be charged.
    number = phones.international(form.get("to", ""))
    sender, wrong = form.get("sender", "").strip(), Problems()
    if number is None:
        wrong.add("to", "format", "Enter a number with + and country code, such as +258841234567.")
    if not 1 <= len(sender) <= 16:
        wrong.add("sender", "length", "A sender must have 1 to 16 characters.")
    wrong.report()
    return number or "", sender


async def begin(
    request: Request,
    to: str,
    name: str,
    start: Callable[[Connection, Trial], Awaitable[None]],
    keep: Callable[[Connection, Trial], Awaitable[None]],
    work: Callable[[Told], Awaitable[Followed]],
    ended: Callable[[Followed], Awaitable[None]],
    *,
    is_long: bool = False,
) -> None:
    """Have a test message followed in the background. `to`: masked; `name`: the supplier's; `start` stores it if no
    other one is being followed, in a transaction, and raises Invalid otherwise; `keep` stores the progress, `ended` is
    called at the end."""
    async with request.writing() as conn, conn.transaction():
        until = await drafts.ends(conn, LONGEST)
        await start(conn, Trial(to, until, Followed(phase="connecting"), is_long))

    async def told(followed: Followed) -> None:
        async with request.services.pool.acquire() as conn:
            await keep(conn, Trial(to, until, followed, is_long))

    async def run() -> None:
        try:
            async with asyncio.timeout(LONGEST):
                found = await work(told)
        except (SettingsError, TimeoutError) as error:
            found = Followed(
                phase="done",
                detail=error.words if isinstance(error, SettingError) else quoted(str(error)),
                note="unreached",
            )
        except Exception as error:
            log.exception("a supplier's test message ended", supplier=name)
            found = Followed(phase="done", detail=quoted(type(error).__name__), note="unreached")
        await told(found)
        await ended(found)

    task = asyncio.create_task(run())
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)


async def cure(request: Request) -> Answer:
    """Change the setting that makes the ids in response and receipt match."""
    draft = await wizard.read(request)
    step = "long" if draft.trial is not None and draft.trial.is_long else "message"
    if draft.trial is None or not draft.trial.followed.cure:
        return Redirect(location=f"/console/drafts/{draft.id}/{step}")
    changed = msgspec.structs.replace(draft, settings=draft.settings | draft.trial.followed.cure)
    async with request.writing() as conn, conn.transaction():
        await drafts.save(conn, suppliers.seal_key(request.services.settings), changed)
        await drafts.keep_trial(conn, draft.id, drafts.with_ids_fixed(draft.trial))
    said = request.text("Saved: answer and receipt now name the same id.")
    return Redirect(location=f"/console/drafts/{draft.id}/{step}", notice=said)


def runs(trial: Trial | None) -> bool:
    """Whether it is still being followed."""
    return trial is not None and trial.followed.phase != "done" and clock.now() < trial.until


def _values(request: Request, draft: Draft) -> dict[str, Any]:
    trial = None if draft.trial is not None and draft.trial.is_long else draft.trial
    return wizard.steps(draft, "message") | followed(request, trial) | {"here_of": f"/console/drafts/{draft.id}"}


def followed(request: Request, trial: Trial | None) -> dict[str, Any]:
    """The values of a test message's form and fragment."""
    form = request.form
    return {
        "trial": trial,
        "runs": runs(trial),
        "has_address": bool(request.services.settings.public_url),
        "number": form.get("to", ""),
        "sender": form.get("sender", "Heliograph"),
        "message": form.get("text", request.text("Test message")),
    }
