"""Routes of look-up suppliers."""

from __future__ import annotations

from heliograph.console.lookups import editing, listing
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import CARRIAGE, CARRIAGE_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/lookups", listing.show, permission=CARRIAGE),
    get("/console/lookups/new", editing.show_new, permission=CARRIAGE_CHANGE, is_proved=True),
    post("/console/lookups/new", editing.add, permission=CARRIAGE_CHANGE, is_proved=True),
    get("/console/lookups/{id}", listing.show_one, permission=CARRIAGE),
    get("/console/lookups/{id}/edit", editing.show, permission=CARRIAGE_CHANGE),
    post("/console/lookups/{id}/edit", editing.change, permission=CARRIAGE_CHANGE, is_proved=True),
    get("/console/lookups/{id}/key", editing.show_key, permission=CARRIAGE_CHANGE, is_proved=True),
    post("/console/lookups/{id}/key", editing.replace_key, permission=CARRIAGE_CHANGE, is_proved=True),
    post("/console/lookups/{id}/try", listing.try_once, permission=CARRIAGE_CHANGE),
    post("/console/lookups/{id}/pause", editing.pause, permission=CARRIAGE_CHANGE),
    post("/console/lookups/{id}/resume", editing.resume, permission=CARRIAGE_CHANGE),
    get("/console/lookups/{id}/remove", editing.show_remove, permission=CARRIAGE_CHANGE),
    post("/console/lookups/{id}/remove", editing.remove, permission=CARRIAGE_CHANGE),
)
