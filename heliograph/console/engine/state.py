"""The frame's own news: how the service is, in words."""

from __future__ import annotations

from heliograph.console.engine.desk import desk
from heliograph.pages.answers import Answer, Shown
from heliograph.pages.pieces import state
from heliograph.pages.requests import Request


async def show(request: Request) -> Answer:
    """How the service is; the fragment has the bell too, which each page renews from time to time."""
    known = desk(request)
    await known.refresh(request)
    values = {"words": await state.said(request), "unread": known.unread(request.operator)}
    return Shown(template="state_live.html" if request.is_fragment else "state.html", values=values)
