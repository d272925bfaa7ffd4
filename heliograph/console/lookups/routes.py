"""Routes of look-up suppliers."""

from __future__ import annotations

from heliograph.console.lookups import editing, listing
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import TRAFFIC, TRAFFIC_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/lookups", listing.show, permission=TRAFFIC),
    get("/console/lookups/new", editing.show_new, permission=TRAFFIC_CHANGE, is_proved=True),
    post("/console/lookups/new", editing.add, permission=TRAFFIC_CHANGE, is_proved=True),
    get("/console/lookups/{id}", listing.show_one, permission=TRAFFIC),
    get("/console/lookups/{id}/edit", editing.show, permission=TRAFFIC_CHANGE),
    post("/console/lookups/{id}/edit", editing.change, permission=TRAFFIC_CHANGE, is_proved=True),
    get("/console/lookups/{id}/key", editing.show_key, permission=TRAFFIC_CHANGE, is_proved=True),
    post("/console/lookups/{id}/key", editing.replace_key, permission=TRAFFIC_CHANGE, is_proved=True),
    post("/console/lookups/{id}/try", listing.try_once, permission=TRAFFIC_CHANGE),
    post("/console/lookups/{id}/pause", editing.pause, permission=TRAFFIC_CHANGE),
    post("/console/lookups/{id}/resume", editing.resume, permission=TRAFFIC_CHANGE),
    get("/console/lookups/{id}/remove", editing.show_remove, permission=TRAFFIC_CHANGE),
    post("/console/lookups/{id}/remove", editing.remove, permission=TRAFFIC_CHANGE),
)
