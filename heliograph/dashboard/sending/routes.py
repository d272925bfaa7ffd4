"""Addresses of sending."""

from __future__ import annotations

from heliograph.dashboard.sending import sms
from heliograph.pages.routes import Route, get, post

ROUTES: tuple[Route, ...] = (
    get("/send", sms.show, "sms:send"),
    post("/send", sms.send, "sms:send"),
    get("/send/preview", sms.back, "sms:send"),
    post("/send/preview", sms.look, "sms:send"),
)
