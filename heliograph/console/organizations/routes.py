"""Addresses of organizations."""

from __future__ import annotations

from heliograph.console.organizations import creating, listing, one, viewing
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import LOOK, MONEY_CHANGE, ORGANIZATIONS, ORGANIZATIONS_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/organizations", listing.show, permission=ORGANIZATIONS),
    get("/console/organizations/new", creating.show, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations", creating.create, permission=ORGANIZATIONS_CHANGE),
    get("/console/organizations/{id}", one.show, permission=ORGANIZATIONS),
    get("/console/organizations/{id}/suspend", one.show_suspend, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/suspend", one.suspend, permission=ORGANIZATIONS_CHANGE),
    get("/console/organizations/{id}/view", viewing.show, permission=LOOK, is_proved=True),
    post("/console/organizations/{id}/view", viewing.begin, permission=LOOK, is_proved=True),
    post("/console/organizations/{id}/resume", one.resume, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/rename", one.rename, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/quota", one.grant, permission=MONEY_CHANGE),
)
