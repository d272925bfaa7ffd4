"""Addresses of carriage."""

from __future__ import annotations

from heliograph.console.carriage import editing, stopping, suppliers, trying, watching, wizard, wizard_message
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import CARRIAGE, CARRIAGE_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/suppliers", suppliers.show, permission=CARRIAGE),
    get("/console/suppliers/new", wizard.show_new, permission=CARRIAGE_CHANGE),
    post("/console/suppliers/new", wizard.begin, permission=CARRIAGE_CHANGE),
    get("/console/drafts/{id}", wizard.go_on, permission=CARRIAGE_CHANGE),
    get("/console/drafts/{id}/connection", wizard.show_connection, permission=CARRIAGE_CHANGE, is_proved=True),
    post("/console/drafts/{id}/connection", wizard.save_connection, permission=CARRIAGE_CHANGE, is_proved=True),
    get("/console/drafts/{id}/test", wizard.show_test, permission=CARRIAGE_CHANGE),
    post("/console/drafts/{id}/test", wizard.test, permission=CARRIAGE_CHANGE),
    get("/console/drafts/{id}/limits", wizard.show_limits, permission=CARRIAGE_CHANGE),
    post("/console/drafts/{id}/limits", wizard.save_limits, permission=CARRIAGE_CHANGE),
    get("/console/drafts/{id}/dialect", wizard.show_dialect, permission=CARRIAGE_CHANGE),
    post("/console/drafts/{id}/dialect", wizard.save_dialect, permission=CARRIAGE_CHANGE),
    get("/console/drafts/{id}/message", wizard_message.show, permission=CARRIAGE_CHANGE),
    post("/console/drafts/{id}/message", wizard_message.send, permission=CARRIAGE_CHANGE),
    post("/console/drafts/{id}/cure", wizard_message.cure, permission=CARRIAGE_CHANGE),
    get("/console/drafts/{id}/place", wizard.show_place, permission=CARRIAGE_CHANGE),
    post("/console/drafts/{id}/place", wizard.finish, permission=CARRIAGE_CHANGE),
    post("/console/drafts/{id}/discard", wizard.discard, permission=CARRIAGE_CHANGE),
    get("/console/suppliers/{id}", suppliers.show_one, permission=CARRIAGE),
    get("/console/suppliers/{id}/edit", editing.show, permission=CARRIAGE_CHANGE),
    post("/console/suppliers/{id}/edit", editing.change, permission=CARRIAGE_CHANGE),
    get("/console/suppliers/{id}/test", trying.show, permission=CARRIAGE_CHANGE),
    post("/console/suppliers/{id}/test", trying.send, permission=CARRIAGE_CHANGE),
    post("/console/suppliers/{id}/cure", trying.cure, permission=CARRIAGE_CHANGE),
    get("/console/suppliers/{id}/password", editing.show_password, permission=CARRIAGE_CHANGE, is_proved=True),
    post("/console/suppliers/{id}/password", editing.replace_password, permission=CARRIAGE_CHANGE, is_proved=True),
    get("/console/suppliers/{id}/pause", stopping.show_pause, permission=CARRIAGE_CHANGE),
    post("/console/suppliers/{id}/pause", stopping.pause, permission=CARRIAGE_CHANGE),
    post("/console/suppliers/{id}/drain", stopping.drain, permission=CARRIAGE_CHANGE),
    post("/console/suppliers/{id}/resume", stopping.resume, permission=CARRIAGE_CHANGE),
    post("/console/suppliers/{id}/reset-circuit", stopping.reset_circuit, permission=CARRIAGE_CHANGE),
    post("/console/suppliers/{id}/watch", watching.watch, permission=CARRIAGE_CHANGE),
    get("/console/suppliers/{id}/remove", stopping.show_remove, permission=CARRIAGE_CHANGE),
    post("/console/suppliers/{id}/remove", stopping.remove, permission=CARRIAGE_CHANGE),
)
