"""My account: what belongs to the person in both realms: name, language and time zone."""

from __future__ import annotations

from heliograph.base.actor import Actor, Principal
from heliograph.base.errors import Problems
from heliograph.pages import cookies, languages
from heliograph.pages.answers import Answer, Redirect
from heliograph.pages.requests import Request
from heliograph.people import users
from heliograph.people.sessions import SignedInUser


def here(request: Request) -> str:
    """The account's page."""
    return f"{request.realm.prefix}/account"


def self_of(request: Request) -> Actor | Principal:
    """Who changes their own account: recorded in the audit log of their current organization, if any."""
    session = request.session
    return (
        request.acting("live") if isinstance(session, SignedInUser) and session.organization_id else request.principal
    )


def zones() -> list[str]:
    """The time zones offered."""
    return sorted(zone for zone in languages.zones() if "/" in zone and not zone.startswith("Etc/"))


def typed(request: Request) -> dict[str, str]:
    """The values of the form."""
    return {name: request.form.get(name, "").strip() for name in ("name", "time_zone", "language")}


async def keep(request: Request) -> Answer:
    """Save name, language and time zone. Raises Invalid."""
    given, wrong = typed(request), Problems()
    with wrong.gathering():
        users.checked_name(given["name"])
    if given["time_zone"] and given["time_zone"] not in languages.zones():
        wrong.add("time_zone", "enum", "There is no such time zone. They look like Africa/Maputo.")
    wrong.report()
    async with request.writing() as conn:
        await users.change(
            conn,
            self_of(request),
            id=request.user_id,
            name=given["name"],
            language=given["language"] or None,
            time_zone=given["time_zone"] or None,
        )
    request.services.sessions.forget(request.token)
    locale, kept = request.locale, list[str]()
    if given["language"] or (request.session and request.session.language):
        # What the browser itself prefers counts again, not the language that the page was just shown in.
        kept.append(cookies.preference(cookies.LANGUAGE, given["language"], is_secure=request.is_secure))
        spoken = request.headers.get(b"accept-language", b"").decode("latin-1")
        locale = languages.locale(given["language"] or languages.accepted(spoken))
    return Redirect(location=here(request), notice=locale.text("Saved."), cookies=kept)


async def change_language(request: Request, language: str) -> None:
    """Change the language alone."""
    async with request.writing() as conn:
        known = await users.get(conn, id=request.user_id)
        await users.change(
            conn, self_of(request), id=known.id, name=known.name, language=language, time_zone=known.time_zone
        )
    request.services.sessions.forget(request.token)
