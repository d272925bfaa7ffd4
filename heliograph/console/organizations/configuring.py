"""An organization's own rules, as in `heliograph org configure` and on its own pages: how its texts are written,
its opt-out keywords and replies, and what it requires of its members.

Countries, sealing and how long texts are kept are in `limits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.accounts import organizations
from heliograph.accounts.organizations import Organization
from heliograph.base.errors import Invalid, Problems
from heliograph.console import typed
from heliograph.console.acting import organization
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.forms import leaving, organization_rules
from heliograph.pages.people import own_account
from heliograph.pages.pieces import reply_form
from heliograph.pages.pieces.reply_form import KINDS, REPLY_LANGUAGES, reply_of, words_of
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import ORGANIZATIONS_CHANGE

#: Fields of the form, except checkboxes.
FIELDS = ("encoding", "time_zone", "session_hours", *reply_form.FIELDS)
TICKS = ("factor_required", "reveals", "developer_keys")
#: The form's initial value of a setting that owners change, too: if left unchanged, it undoes no change of theirs.
SHOWN = "developer_keys_shown"
#: Choices for the reply to a keyword.
HOW: Mapping[str, str] = {"default": "The standard reply", "own": "Its own", "none": "None"}
#: The rules' refusals in the form's wording.
WRONG: Mapping[str, str] = {
    "time_zone": "Choose one of the time zones.",
    "opt_out_words": "At most 50 keywords of at most 64 characters, each with a letter or digit.",
    "reply_language": "Choose one of the languages that are offered.",
    "session_hours": "Enter a number of hours from 1 to 720, or nothing.",
    **{f"{kind}_reply": "A reply can have at most 268 characters." for kind in KINDS},
}


async def show(request: Request) -> Answer:
    """All settings in one form."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
    return Page(template="organizations/settings.html", values=_values(request, one, _known(one)))


async def change(request: Request) -> Answer:
    """Change its rules, from now on. Its members see in their audit log that the operator changed them."""
    form = request.form
    given = {name: form.get(name, "").strip() for name in FIELDS} | {
        name: form.get(name, "") for name in (*TICKS, SHOWN)
    }
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
    given |= leaving.current_values(form, _known(one))
    encoding = organization_rules.encoding(given["encoding"])
    wrong, session_hours = Problems(), None
    try:
        with wrong.gathering():
            session_hours = typed.within(
                given["session_hours"], "session_hours", (1, organizations.LONGEST_SESSION), WRONG["session_hours"]
            )
        async with request.writing() as conn, conn.transaction():
            with wrong.gathering():
                await organizations.configure(
                    conn,
                    id=one.id,
                    smart_encoding=encoding.is_smart,
                    replace_accents=encoding.replaces_accents,
                    opt_out_words=words_of(given["opt_out_words"]),
                    stop_reply=reply_of(given, "stop"),
                    start_reply=reply_of(given, "start"),
                    help_reply=reply_of(given, "help"),
                    reply_language=given["reply_language"] or None,
                    time_zone=given["time_zone"] or None,
                    factor_required=given["factor_required"] == "yes",
                    session_hours=session_hours,
                    reveals=given["reveals"] == "yes",
                    developer_keys=(
                        None if given["developer_keys"] == given[SHOWN] else given["developer_keys"] == "yes"
                    ),
                    by=request.principal,
                )
            wrong.report()
    except Invalid as refusal:
        return refused("organizations/settings.html", form_errors(refusal, WRONG), _values(request, one, given))
    return Redirect(location=f"/console/organizations/{one.id}/settings", notice=request.text("Saved."))


def _known(one: Organization) -> dict[str, str]:
    return reply_form.shown(one) | {
        "encoding": organization_rules.shown_encoding(one),
        "time_zone": one.time_zone or "",
        "session_hours": str(one.session_hours or ""),
        "factor_required": "yes" if one.factor_required else "",
        "reveals": "yes" if one.reveals else "",
        "developer_keys": "yes" if one.developer_keys else "",
        SHOWN: "yes" if one.developer_keys else "",
    }


def _values(request: Request, one: Organization, given: Mapping[str, str]) -> dict[str, Any]:
    text = request.text
    return {
        "one": one,
        "typed": given,
        "was": leaving.written(_known(one)),
        "encodings": [(name, text(said), text(more)) for name, said, more in words.ENCODINGS],
        "zones": own_account.zones(),
        "reply_languages": [
            ("", text("As in its country")),
            *((name, text(REPLY_LANGUAGES[name])) for name in organizations.REPLY_LANGUAGES),
        ],
        "replies": [
            ("stop", text("After STOP"), text("Text of the reply to STOP")),
            ("start", text("After START"), text("Text of the reply to START")),
            ("help", text("After HELP"), text("Text of the reply to HELP")),
        ],
        "how": [(name, text(said)) for name, said in HOW.items()],
        "may_change": request.may(permission=ORGANIZATIONS_CHANGE),
    }
