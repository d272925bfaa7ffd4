"""Settings: those that operators set, those of the environment, and a test of outgoing mail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from heliograph.accounts import installation
from heliograph.accounts.installation import Installation
from heliograph.base.errors import Invalid
from heliograph.base.process.settings import in_force
from heliograph.mail import outbox
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.forms import leaving
from heliograph.pages.lists import ranges
from heliograph.pages.requests import Request
from heliograph.people.mailing import trial
from heliograph.people.operators.roles import SETTINGS_CHANGE

HERE = "/console/settings"
#: Environment settings that people look for here.
OF_ENVIRONMENT = (
    *("PUBLIC_URL", "CONSOLE_URL", "CONSOLE_LISTEN", "METRICS_LISTEN"),
    *("SMTP_URL", "MAIL_FROM"),
    *("TEXT_RETENTION_DAYS", "METADATA_RETENTION_MONTHS", "AUDIT_RETENTION_MONTHS"),
    *("RATE_SMS_SEND", "RATE_CAMPAIGNS", "RATE_MUTATIONS", "RATE_READS"),
)
#: The rules' refusals in the form's wording.
WRONG: Mapping[str | tuple[str, str], str] = {
    "name": "A name can have at most 40 characters.",
    "announcement": "An announcement can have at most 300 characters.",
    **dict.fromkeys(
        ("terms_url", "privacy_url"),
        "Enter an address that begins with http:// or https://, of at most 300 characters.",
    ),
    ("announcement_until", "format"): "This is not a date and time.",
    ("announcement_until", "past"): "Choose a time in the future.",
    "new_quota": "Enter a number of messages of at most 9 digits.",
}


async def show(request: Request) -> Answer:
    """All settings; the fragment shows the progress of the test mail."""
    values = await _values(request)
    return Page(
        template="administration/mail_live.html" if request.is_fragment else "administration/settings.html",
        values=values,
    )


async def save(request: Request) -> Answer:
    """Save the form, all or nothing."""
    try:
        given = _given(request)
        async with request.writing() as conn:
            as_shown = leaving.unchanged_fields(request.form)
            wanted = {name: text for name, text in given.items() if name not in as_shown}
            await installation.change(conn, request.principal, wanted)
    except Invalid as refusal:
        return refused("administration/settings.html", form_errors(refusal, WRONG), await _values(request))
    request.services.installation.forget()
    return Redirect(location=HERE, notice=request.text("The settings are saved."))


async def send_mail(request: Request) -> Answer:
    """Send a mail to oneself, by the same route as all mails."""
    box = outbox.of(request.services.settings)
    if box is None:
        return Redirect(
            location=HERE, notice=request.text("No mails are sent: HELIOGRAPH_SMTP_URL is not set."), is_refusal=True
        )
    operator, language = request.operator, request.locale.language
    async with request.writing() as conn, conn.transaction():
        await trial.put(conn, box, user_id=operator.user_id, email=operator.email, language=language)
    return Redirect(location=f"{HERE}#mail")


def _given(request: Request) -> dict[str, str]:
    """The fields of the form, as `installation.change` expects them."""
    form = request.form
    given = {name: form.get(name, "") for name in installation.NAMES}
    given |= {name: "true" if form.get(name) else "false" for name in ("four_eyes", "receipts_mail")}
    if given["name"].strip() == installation.PRODUCT:
        given["name"] = ""
    if until := given["announcement_until"]:
        try:
            given["announcement_until"] = ranges.moment(until, ZoneInfo(request.locale.zone), is_end=True).isoformat()
        except (ValueError, OverflowError):
            given["announcement_until"] = "-"  # refused along with whatever else is wrong
    return given


async def _values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        known = await installation.load(conn)
        tried = await trial.latest(conn, user_id=request.operator.user_id)
    settings = request.services.settings
    shown = {one.name.removeprefix("HELIOGRAPH_"): (one.value, one.source == "default") for one in in_force(settings)}
    typed = _typed(request, known)
    return {
        "known": typed,
        "was": request.form.get(leaving.WAS, "{}") if request.method == "POST" else leaving.written(_texts(typed)),
        "may_change": request.may(permission=SETTINGS_CHANGE),
        "environment": [(f"HELIOGRAPH_{name}", *shown[name]) for name in OF_ENVIRONMENT],
        "has_mail": bool(settings.smtp_url),
        "email": request.operator.email,
        "tried": tried,
    }


def _texts(typed: Mapping[str, Any]) -> dict[str, str]:
    """Values as a form sends them: "true" for a ticked box, "" for an unticked one."""
    return {name: ("true" if value else "") if isinstance(value, bool) else str(value) for name, value in typed.items()}


def _typed(request: Request, known: Installation) -> dict[str, Any]:
    """The contents of the fields."""
    if request.method == "POST":
        return {name: request.form.get(name, "") for name in installation.NAMES}
    until = known.announcement_until
    zone = ZoneInfo(request.locale.zone)
    return {name: getattr(known, name) for name in installation.NAMES} | {
        "announcement_until": until.astimezone(zone).strftime("%Y-%m-%dT%H:%M") if until else "",
        "new_quota": known.new_quota or "",
    }
