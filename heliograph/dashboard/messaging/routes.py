"""Addresses of home and messages."""

from __future__ import annotations

from heliograph.dashboard.messaging import home, messages
from heliograph.pages.routes import Route, get, own, post, public
from heliograph.people.roles import REVEAL

ROUTES: tuple[Route, ...] = (
    public("GET", "/", home.front),
    own("POST", "/checklist/dismiss", home.dismiss),
    get("/messages", messages.show_list, "sms:read"),
    get("/messages/{id}", messages.show, "sms:read"),
    post("/messages/{id}/cancel", messages.cancel, "sms:send"),
    post("/messages/{id}/reveal", messages.reveal, "sms:read", REVEAL, is_proved=True),
    get("/go", messages.go, "sms:read"),
    get("/go/{anything}", messages.go, "sms:read"),
)
