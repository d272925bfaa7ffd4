"""Addresses of usage and wallet."""

from __future__ import annotations

from heliograph.dashboard.money import usage
from heliograph.pages.routes import Route, get, post
from heliograph.people.roles import USAGE

ROUTES: tuple[Route, ...] = (
    get("/usage", usage.show, permission=USAGE),
    get("/usage/ledger", usage.show_ledger, permission=USAGE),
    post("/usage/export", usage.export, permission=USAGE),
)
