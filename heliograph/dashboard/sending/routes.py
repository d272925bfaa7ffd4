"""Addresses of sending."""

from __future__ import annotations

from heliograph.dashboard.sending import sms, template
from heliograph.pages.routes import Route, get, post

ROUTES: tuple[Route, ...] = (
    get("/send", sms.show, "sms:send"),
    post("/send", sms.send, "sms:send"),
    get("/send/preview", sms.back, "sms:send"),
    post("/send/preview", sms.look, "sms:send"),
    get("/send/template", template.back, "whatsapp:send"),
    post("/send/template", template.send, "whatsapp:send"),
    get("/send/template/preview", template.back, "whatsapp:send"),
    post("/send/template/preview", template.look, "whatsapp:send"),
)
