"""Preferences stored in the browser: theme, density, language, collapsed rail, keys and rows; for visitors, too."""

from __future__ import annotations

from heliograph.pages import cookies, forgery, languages
from heliograph.pages.answers import Answer, Redirect, own_address
from heliograph.pages.lists import pagination
from heliograph.pages.people import own_account
from heliograph.pages.requests import Request
from heliograph.people.sessions import SignedInUser


async def set_preferences(request: Request) -> Answer:
    """Store the choices, and return to the page."""
    kept = []
    for field, name, allowed in (
        ("theme", cookies.THEME, cookies.THEMES),
        ("density", cookies.DENSITY, cookies.DENSITIES),
        ("language", cookies.LANGUAGE, tuple(languages.LANGUAGES)),
        ("rail", cookies.RAIL, ("folded", "open")),
        ("keys", cookies.KEYS, ("on", "off")),
        ("rows", cookies.ROWS, tuple(map(str, pagination.SIZES))),
    ):
        value = request.form.get(field, "")
        if value in allowed:
            kept.append(cookies.preference(name, value, is_secure=request.is_secure))
    await _choose_language(request)
    return Redirect(location=own_address(request.form.get("next", request.realm.home)), cookies=kept)


async def _choose_language(request: Request) -> None:
    """Change the language in the account of a person who has chosen one there, which comes before the browser's. One
    that is submitted as the page showed it is not chosen: the form has the theme and the density, too."""
    person, chosen = request.session, request.form.get("language", "")
    if person is None or person.language is None or forgery.FIELD not in request.form:
        return
    if isinstance(person, SignedInUser) and person.reason is not None:  # an operator who views as an organization
        return
    if chosen in languages.LANGUAGES and chosen not in (person.language, request.form.get("shown")):
        await own_account.change_language(request, chosen)
