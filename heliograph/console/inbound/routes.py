"""Routes of messages from handsets."""

from __future__ import annotations

from heliograph.console.inbound import listing
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import APPROVE, LOOK, TRAFFIC, TRAFFIC_CHANGE

ROUTES: tuple[Route, ...] = (
    get("/console/inbound", listing.show, permission=TRAFFIC),
    post("/console/inbound/reveal", listing.reveal, permission=LOOK, is_proved=True),
    post("/console/inbound/assign", listing.assign, permission=APPROVE),
    post("/console/inbound/retry", listing.retry, permission=TRAFFIC_CHANGE),
)
