"""Routes of the pages for developers."""

from __future__ import annotations

from heliograph.dashboard.developers import catcher, deliveries, endpoint, keys, requests, webhooks
from heliograph.pages.routes import Route, alike, ending, get, post, reading
from heliograph.people.roles import DEVELOP, REVEAL

ROUTES: tuple[Route, ...] = (
    alike("/webhooks", webhooks.show, "webhooks:read"),
    get("/webhooks/new", webhooks.show_new, "webhooks:write", is_proved=True),
    post("/webhooks", webhooks.make, "webhooks:write", is_proved=True),
    get("/webhooks/catcher", catcher.show, "webhooks:read"),
    post("/webhooks/catcher", catcher.open, "webhooks:write", is_proved=True),
    post("/webhooks/catcher/close", catcher.close, "webhooks:write"),
    alike("/webhooks/{id}", endpoint.show, "webhooks:read"),
    get("/webhooks/{id}/edit", endpoint.show_edit, "webhooks:write", is_proved=True),
    post("/webhooks/{id}/edit", endpoint.edit, "webhooks:write", is_proved=True),
    get("/webhooks/{id}/disable", endpoint.show_disable, "webhooks:write"),
    ending(post("/webhooks/{id}/disable", endpoint.disable, "webhooks:write")),
    post("/webhooks/{id}/enable", endpoint.enable, "webhooks:write"),
    post("/webhooks/{id}/pause", endpoint.pause, "webhooks:write"),
    post("/webhooks/{id}/resume", endpoint.resume, "webhooks:write"),
    get("/webhooks/{id}/rotate", endpoint.show_rotate, "webhooks:write", is_proved=True),
    post("/webhooks/{id}/rotate", endpoint.rotate, "webhooks:write", is_proved=True),
    post("/webhooks/{id}/test", endpoint.test, "webhooks:write"),
    get("/webhooks/{id}/replay", endpoint.show_replay, "webhooks:write"),
    post("/webhooks/{id}/replay", endpoint.replay, "webhooks:write"),
    get("/webhooks/{id}/events/{event}", deliveries.show, "webhooks:read"),
    post("/webhooks/{id}/events/{event}/resend", deliveries.resend, "webhooks:write"),
    reading(post("/webhooks/{id}/events/{event}/reveal", deliveries.reveal, "webhooks:read", REVEAL, is_proved=True)),
    get("/requests", requests.show_list, "webhooks:read", DEVELOP),
    get("/requests/{id}", requests.show, "webhooks:read", DEVELOP),
    get("/keys", keys.show, "api_keys:read"),
    get("/keys/new", keys.show_new, "api_keys:write", is_proved=True),
    post("/keys", keys.make, "api_keys:write", is_proved=True),
    get("/keys/check", keys.show_check, "api_keys:read"),
    reading(post("/keys/check", keys.check, "api_keys:read")),
    get("/keys/{id}/rotate", keys.show_rotate, "api_keys:write", is_proved=True),
    post("/keys/{id}/rotate", keys.rotate, "api_keys:write", is_proved=True),
    get("/keys/{id}/rename", keys.show_rename, "api_keys:write"),
    post("/keys/{id}/rename", keys.rename, "api_keys:write"),
    get("/keys/{id}/revoke", keys.show_revoke, "api_keys:write"),
    ending(post("/keys/{id}/revoke", keys.revoke, "api_keys:write", is_proved=True)),
)
