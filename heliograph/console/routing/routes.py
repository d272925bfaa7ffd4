"""HTTP routes of the routing pages."""

from __future__ import annotations

from heliograph.console.routing import changing, editing, explained, listing, registering, ruling
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import CARRIAGE, CARRIAGE_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/routes", listing.show, permission=CARRIAGE),
    get("/console/routes/matrix", listing.show_matrix, permission=CARRIAGE),
    get("/console/routes/history", changing.show_history, permission=CARRIAGE),
    get("/console/routes/explain", explained.show, permission=CARRIAGE),
    get("/console/routes/new", editing.show_new, permission=CARRIAGE_CHANGE),
    post("/console/routes/new", editing.add, permission=CARRIAGE_CHANGE),
    get("/console/routes/registrations", registering.show, permission=CARRIAGE),
    post("/console/routes/registrations", registering.register, permission=CARRIAGE_CHANGE),
    get("/console/routes/rules", ruling.show, permission=CARRIAGE),
    get("/console/routes/rules/sender", ruling.show_sender, permission=CARRIAGE_CHANGE),
    post("/console/routes/rules/sender", ruling.set_sender, permission=CARRIAGE_CHANGE),
    get("/console/routes/rules/sender/{id}/remove", ruling.show_remove_sender, permission=CARRIAGE_CHANGE),
    post("/console/routes/rules/sender/{id}/remove", ruling.remove_sender, permission=CARRIAGE_CHANGE),
    get("/console/routes/rules/number", ruling.show_number, permission=CARRIAGE_CHANGE),
    post("/console/routes/rules/number", ruling.set_number, permission=CARRIAGE_CHANGE),
    get("/console/routes/rules/number/{id}/remove", ruling.show_remove_number, permission=CARRIAGE_CHANGE),
    post("/console/routes/rules/number/{id}/remove", ruling.remove_number, permission=CARRIAGE_CHANGE),
    get("/console/routes/{id}", listing.show_one, permission=CARRIAGE),
    get("/console/routes/{id}/edit", editing.show, permission=CARRIAGE_CHANGE),
    post("/console/routes/{id}/edit", editing.change, permission=CARRIAGE_CHANGE),
    get("/console/routes/{id}/pause", changing.show_pause, permission=CARRIAGE_CHANGE),
    post("/console/routes/{id}/pause", changing.pause, permission=CARRIAGE_CHANGE),
    get("/console/routes/{id}/resume", changing.show_resume, permission=CARRIAGE_CHANGE),
    post("/console/routes/{id}/resume", changing.resume, permission=CARRIAGE_CHANGE),
    get("/console/routes/{id}/remove", changing.show_remove, permission=CARRIAGE_CHANGE),
    post("/console/routes/{id}/remove", changing.remove, permission=CARRIAGE_CHANGE),
    get("/console/routes/{id}/undo/{entry}", changing.show_undo, permission=CARRIAGE_CHANGE),
    post("/console/routes/{id}/undo/{entry}", changing.undo, permission=CARRIAGE_CHANGE),
)
