"""HTTP routes of the routing pages."""

from __future__ import annotations

from heliograph.console.routing import changing, editing, explained, listing, registering, ruling
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import TRAFFIC, TRAFFIC_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/routes", listing.show, permission=TRAFFIC),
    get("/console/routes/matrix", listing.show_matrix, permission=TRAFFIC),
    get("/console/routes/history", changing.show_history, permission=TRAFFIC),
    get("/console/routes/explain", explained.show, permission=TRAFFIC),
    get("/console/routes/new", editing.show_new, permission=TRAFFIC_CHANGE),
    post("/console/routes/new", editing.add, permission=TRAFFIC_CHANGE),
    get("/console/routes/registrations", registering.show, permission=TRAFFIC),
    post("/console/routes/registrations", registering.register, permission=TRAFFIC_CHANGE),
    get("/console/routes/rules", ruling.show, permission=TRAFFIC),
    get("/console/routes/rules/sender", ruling.show_sender, permission=TRAFFIC_CHANGE),
    post("/console/routes/rules/sender", ruling.set_sender, permission=TRAFFIC_CHANGE),
    get("/console/routes/rules/sender/{id}/remove", ruling.show_remove_sender, permission=TRAFFIC_CHANGE),
    post("/console/routes/rules/sender/{id}/remove", ruling.remove_sender, permission=TRAFFIC_CHANGE),
    get("/console/routes/rules/number", ruling.show_number, permission=TRAFFIC_CHANGE),
    post("/console/routes/rules/number", ruling.set_number, permission=TRAFFIC_CHANGE),
    get("/console/routes/rules/number/{id}/remove", ruling.show_remove_number, permission=TRAFFIC_CHANGE),
    post("/console/routes/rules/number/{id}/remove", ruling.remove_number, permission=TRAFFIC_CHANGE),
    get("/console/routes/{id}", listing.show_one, permission=TRAFFIC),
    get("/console/routes/{id}/edit", editing.show, permission=TRAFFIC_CHANGE),
    post("/console/routes/{id}/edit", editing.change, permission=TRAFFIC_CHANGE),
    get("/console/routes/{id}/pause", changing.show_pause, permission=TRAFFIC_CHANGE),
    post("/console/routes/{id}/pause", changing.pause, permission=TRAFFIC_CHANGE),
    get("/console/routes/{id}/resume", changing.show_resume, permission=TRAFFIC_CHANGE),
    post("/console/routes/{id}/resume", changing.resume, permission=TRAFFIC_CHANGE),
    get("/console/routes/{id}/remove", changing.show_remove, permission=TRAFFIC_CHANGE),
    post("/console/routes/{id}/remove", changing.remove, permission=TRAFFIC_CHANGE),
    get("/console/routes/{id}/undo/{entry}", changing.show_undo, permission=TRAFFIC_CHANGE),
    post("/console/routes/{id}/undo/{entry}", changing.undo, permission=TRAFFIC_CHANGE),
)
