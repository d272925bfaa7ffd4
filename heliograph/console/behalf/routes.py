"""Addresses of what is done in an organization's stead."""

from __future__ import annotations

from heliograph.console.behalf import campaigning, configuring
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import ORGANIZATIONS, ORGANIZATIONS_CHANGE

CAMPAIGN = "/console/organizations/{id}/campaigns/{campaign}"

ROUTES: tuple[Route, ...] = (
    post(f"{CAMPAIGN}/pause", campaigning.pause, permission=ORGANIZATIONS_CHANGE),
    post(f"{CAMPAIGN}/resume", campaigning.resume, permission=ORGANIZATIONS_CHANGE),
    get(f"{CAMPAIGN}/cancel", campaigning.show_cancel, permission=ORGANIZATIONS_CHANGE),
    post(f"{CAMPAIGN}/cancel", campaigning.cancel, permission=ORGANIZATIONS_CHANGE),
    get("/console/organizations/{id}/settings", configuring.show, permission=ORGANIZATIONS),
    post("/console/organizations/{id}/settings", configuring.change, permission=ORGANIZATIONS_CHANGE, is_proved=True),
)
