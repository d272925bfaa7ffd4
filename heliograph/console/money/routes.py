"""Routes of money."""

from __future__ import annotations

from heliograph.console.money import (
    billing,
    margins,
    overview,
    refunds,
    tariffs,
    wallets,
    whatsapp_rates,
    whatsapp_rates_import,
)
from heliograph.pages.routes import Route, get, post, upload
from heliograph.people.operators.roles import MONEY, MONEY_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/plans", overview.show_plans, permission=MONEY),
    get("/console/refunds", refunds.show, permission=MONEY),
    post("/console/refunds", refunds.change, permission=MONEY_CHANGE, is_proved=True),
    get("/console/rates", overview.show_rates, permission=MONEY),
    get("/console/rates/import", tariffs.show_import, permission=MONEY_CHANGE),
    upload("/console/rates/import", tariffs.import_, permission=MONEY_CHANGE, is_proved=True),
    get("/console/rates/whatsapp", whatsapp_rates.show, permission=MONEY),
    get("/console/rates/whatsapp/import", whatsapp_rates_import.show, permission=MONEY),
    upload("/console/rates/whatsapp/import", whatsapp_rates_import.submit, permission=MONEY_CHANGE, is_proved=True),
    get("/console/rates/cards/{id}", tariffs.show, permission=MONEY),
    get("/console/rates/cards/{id}/draft", tariffs.draft, permission=MONEY),
    post("/console/rates/cards/{id}/assign", tariffs.assign, permission=MONEY_CHANGE, is_proved=True),
    get("/console/margins", margins.show, permission=MONEY),
    get("/console/wallets", wallets.show, permission=MONEY),
    get("/console/wallets/{id}", wallets.show_one, permission=MONEY),
    post("/console/wallets/{id}", wallets.change, permission=MONEY_CHANGE, is_proved=True),
    get("/console/billing", billing.show, permission=MONEY),
    get("/console/billing/{month}", billing.show_one, permission=MONEY),
    get("/console/billing/{month}/lock", billing.show_lock, permission=MONEY_CHANGE),
    post("/console/billing/{month}/lock", billing.lock, permission=MONEY_CHANGE, is_proved=True),
    get("/console/billing/{month}/file", billing.fetch, permission=MONEY),
)
