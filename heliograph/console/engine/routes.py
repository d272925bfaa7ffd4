"""Routes of the engine."""

from __future__ import annotations

from heliograph.console.engine import health, notice_choices, notices, now, queue, state
from heliograph.pages.routes import Route, get, post, wall
from heliograph.people.operators.roles import NOW, TRAFFIC, TRAFFIC_CHANGE

ROUTES: tuple[Route, ...] = (
    wall("/console/now", now.show, NOW),
    get("/console/notices", notices.show, permission=NOW),
    post("/console/notices/read", notices.read, permission=NOW),
    get("/console/notices/choices", notice_choices.show, permission=NOW),
    post("/console/notices/choices", notice_choices.choose, permission=NOW),
    get("/console/state", state.show, permission=NOW),
    get("/console/health", health.show, permission=TRAFFIC),
    get("/console/queue", queue.show, permission=TRAFFIC),
    get("/console/queue/hold", queue.show_hold, permission=TRAFFIC_CHANGE),
    post("/console/queue/hold", queue.hold, permission=TRAFFIC_CHANGE),
    get("/console/queue/withdraw", queue.show_withdraw, permission=TRAFFIC_CHANGE),
    post("/console/queue/withdraw", queue.withdraw, permission=TRAFFIC_CHANGE),
    get("/console/queue/workers/{id}/drain", queue.show_drain, permission=TRAFFIC_CHANGE),
    post("/console/queue/workers/{id}/drain", queue.drain, permission=TRAFFIC_CHANGE),
    post("/console/queue/workers/{id}/resume", queue.resume, permission=TRAFFIC_CHANGE),
    post("/console/queue/{id}/hurry", queue.hurry, permission=TRAFFIC_CHANGE),
    post("/console/queue/holds/{id}/release", queue.release, permission=TRAFFIC_CHANGE),
)
