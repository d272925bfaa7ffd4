"""Routes of templates and WhatsApp numbers."""

from __future__ import annotations

from heliograph.dashboard.whatsapp import numbers, templates
from heliograph.pages.routes import Route, get

ROUTES: tuple[Route, ...] = (
    get("/templates", templates.show_list, "whatsapp:read"),
    get("/templates/{id}", templates.show, "whatsapp:read"),
    get("/numbers", numbers.show, "whatsapp:read"),
)
