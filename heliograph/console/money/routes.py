"""Addresses of money."""

from __future__ import annotations

from heliograph.console.money import billing, margins, overview, wallets
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import MONEY, MONEY_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/plans", overview.show_plans, permission=MONEY),
    get("/console/rates", overview.show_rates, permission=MONEY),
    get("/console/margins", margins.show, permission=MONEY),
    get("/console/wallets", wallets.show, permission=MONEY),
    get("/console/wallets/{id}", wallets.show_one, permission=MONEY),
    post("/console/wallets/{id}", wallets.change, permission=MONEY_CHANGE),
    get("/console/billing", billing.show, permission=MONEY),
    get("/console/billing/{month}", billing.show_one, permission=MONEY),
    post("/console/billing/{month}/lock", billing.lock, permission=MONEY_CHANGE),
    get("/console/billing/{month}/file", billing.fetch, permission=MONEY),
)
