"""Routes of usage and wallet."""

from __future__ import annotations

from heliograph.dashboard.money import usage, wallet
from heliograph.pages.routes import Route, get, post, reading
from heliograph.people.roles import MONEY, USAGE

ROUTES: tuple[Route, ...] = (
    get("/usage", usage.show, permission=USAGE),
    get("/usage/ledger", usage.show_ledger, permission=USAGE),
    reading(post("/usage/export", usage.export, permission=USAGE)),
    post("/usage/alert", usage.set_alert, permission=MONEY),
    get("/wallet", wallet.show, permission=USAGE),
    get("/wallet/ledger", wallet.show_ledger, permission=USAGE),
    get("/wallet/prices", wallet.show_prices, permission=USAGE),
    post("/wallet/alert", wallet.set_alert, permission=MONEY),
)
