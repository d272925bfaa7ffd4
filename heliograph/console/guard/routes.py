"""Routes of the guard."""

from __future__ import annotations

from heliograph.console.guard import holding, settling
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import ORGANIZATIONS_CHANGE, TRAFFIC, TRAFFIC_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/guard", holding.show, permission=TRAFFIC),
    post("/console/guard/holds/{id}/release", holding.release, permission=TRAFFIC_CHANGE),
    get("/console/guard/holds/{id}/withdraw", holding.show_withdraw, permission=TRAFFIC_CHANGE),
    post("/console/guard/holds/{id}/withdraw", holding.withdraw, permission=TRAFFIC_CHANGE),
    get("/console/guard/rules/{organization}", settling.show, permission=TRAFFIC),
    post("/console/guard/rules/{organization}", settling.save, permission=ORGANIZATIONS_CHANGE),
)
