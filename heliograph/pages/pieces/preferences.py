"""Preferences stored in the browser: theme, density, language, collapsed rail, keys and rows; for visitors, too."""

from __future__ import annotations

from heliograph.pages import cookies
from heliograph.pages.answers import Answer, Redirect, own_address
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request


async def set_preferences(request: Request) -> Answer:
    """Store the choices, and return to the page."""
    kept = []
    for field, name, allowed in (
        ("theme", cookies.THEME, cookies.THEMES),
        ("density", cookies.DENSITY, cookies.DENSITIES),
        ("language", cookies.LANGUAGE, ("en", "pt")),
        ("rail", cookies.RAIL, ("folded", "open")),
        ("keys", cookies.KEYS, ("on", "off")),
        ("rows", cookies.ROWS, tuple(map(str, pagination.SIZES))),
    ):
        value = request.form.get(field, "")
        if value in allowed:
            kept.append(cookies.preference(name, value, is_secure=request.is_secure))
    return Redirect(location=own_address(request.form.get("next", request.realm.home)), cookies=kept)
