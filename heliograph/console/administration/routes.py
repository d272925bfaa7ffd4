"""Routes of administration."""

from __future__ import annotations

from heliograph.console.administration import audit, installation, operators
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import AUDIT_OWN, OPERATORS, SETTINGS, SETTINGS_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/audit", audit.show, permission=AUDIT_OWN),
    post("/console/audit/export", audit.export, permission=AUDIT_OWN),
    get("/console/settings", installation.show, permission=SETTINGS),
    post("/console/settings", installation.save, permission=SETTINGS_CHANGE, is_proved=True),
    post("/console/settings/mail", installation.send_mail, permission=SETTINGS_CHANGE),
    get("/console/operators", operators.show, permission=OPERATORS),
    get("/console/operators/new", operators.show_new, permission=OPERATORS, is_proved=True),
    post("/console/operators", operators.add, permission=OPERATORS, is_proved=True),
    get("/console/operators/{id}", operators.show_one, permission=OPERATORS),
    post("/console/operators/{id}/role", operators.change_role, permission=OPERATORS, is_proved=True),
    post("/console/operators/{id}/link", operators.make_link, permission=OPERATORS, is_proved=True),
    post("/console/operators/{id}/sessions/end", operators.end_sessions, permission=OPERATORS),
    post("/console/operators/{id}/remove", operators.remove, permission=OPERATORS, is_proved=True),
)
