"""Routes of receipts."""

from __future__ import annotations

from heliograph.console.receipts import report, unmatched, words
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import CARRIAGE, CARRIAGE_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/receipts", report.show, permission=CARRIAGE),
    get("/console/receipts/unmatched", unmatched.show, permission=CARRIAGE),
    post("/console/receipts/unmatched/retry", unmatched.retry_all, permission=CARRIAGE_CHANGE),
    post("/console/receipts/unmatched/cure", unmatched.cure, permission=CARRIAGE_CHANGE),
    post("/console/receipts/unmatched/{id}/retry", unmatched.retry, permission=CARRIAGE_CHANGE),
    get("/console/receipts/unmatched/{id}/match", unmatched.show_match, permission=CARRIAGE_CHANGE),
    post("/console/receipts/unmatched/{id}/match", unmatched.match, permission=CARRIAGE_CHANGE),
    get("/console/receipts/words", words.show, permission=CARRIAGE),
    post("/console/receipts/words/state", words.say_state, permission=CARRIAGE_CHANGE),
    post("/console/receipts/words/error", words.say_error, permission=CARRIAGE_CHANGE),
)
