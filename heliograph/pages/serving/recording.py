"""What is recorded of a request: the end of its span, and actions on the dashboard in the request log."""

from __future__ import annotations

import time

from heliograph.base.ids import uuid7
from heliograph.pages.requests import Request
from heliograph.people.sessions import SignedInUser
from heliograph.requests import Entry, blanking


def end_span(request: Request, status: int, code: str) -> None:
    """End the span of a traced request, with its status and, if it was refused, the error code."""
    if request.span is None:
        return
    said: dict[str, str | int] = {
        "http.request.method": request.method,
        "http.response.status_code": status,
        "request_id": request.request_id,
    }
    if request.route:
        said["http.route"] = request.route
    if isinstance(request.session, SignedInUser) and request.session.organization_id is not None:
        said["organization_id"] = str(request.session.organization_id)
    if code:
        said["error.type"] = code
    request.span.end(said, name=f"POST {request.route or 'page'}", failed=status >= 500)


def remember(request: Request, status: int, code: str, began: float) -> None:
    """Add an action on the dashboard to the request log, alongside programs' requests, without what was typed."""
    if request.person.organization_id is None:
        return
    request.services.log.note(
        Entry(
            organization_id=request.person.organization_id,
            id=uuid7(),
            mode=request.mode,
            person_id=request.person.user_id,
            method=request.method,
            path=blanking.path(request.route, dict(request.parameters)),
            operation=request.route,
            status=status,
            error_code=code,
            duration_ms=round((time.monotonic() - began) * 1000),
            address=request.address,
            agent=request.agent,
            request_id=request.request_id,
        )
    )
