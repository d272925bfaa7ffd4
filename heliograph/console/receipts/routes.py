"""Routes of receipts."""

from __future__ import annotations

from heliograph.console.receipts import report, unmatched, words
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import TRAFFIC, TRAFFIC_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/receipts", report.show, permission=TRAFFIC),
    get("/console/receipts/unmatched", unmatched.show, permission=TRAFFIC),
    post("/console/receipts/unmatched/retry", unmatched.retry_all, permission=TRAFFIC_CHANGE),
    post("/console/receipts/unmatched/cure", unmatched.cure, permission=TRAFFIC_CHANGE),
    post("/console/receipts/unmatched/{id}/retry", unmatched.retry, permission=TRAFFIC_CHANGE),
    get("/console/receipts/unmatched/{id}/match", unmatched.show_match, permission=TRAFFIC_CHANGE),
    post("/console/receipts/unmatched/{id}/match", unmatched.match, permission=TRAFFIC_CHANGE),
    get("/console/receipts/words", words.show, permission=TRAFFIC),
    post("/console/receipts/words/state", words.say_state, permission=TRAFFIC_CHANGE),
    post("/console/receipts/words/error", words.say_error, permission=TRAFFIC_CHANGE),
)
