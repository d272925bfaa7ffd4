"""Addresses of what developers need."""

from __future__ import annotations

from heliograph.dashboard.developers import keys
from heliograph.pages.routes import Route, get, post

ROUTES: tuple[Route, ...] = (
    get("/keys", keys.show, "api_keys:read"),
    get("/keys/new", keys.show_new, "api_keys:write", is_proved=True),
    post("/keys", keys.make, "api_keys:write", is_proved=True),
    get("/keys/{id}/revoke", keys.show_revoke, "api_keys:write"),
    post("/keys/{id}/revoke", keys.revoke, "api_keys:write", is_proved=True),
)
