"""What is written down of a request: the end of its span, and an act of the dashboard in the log of requests."""

from __future__ import annotations

import time

from heliograph.base.ids import uuid7
from heliograph.pages.requests import Request
from heliograph.people.sessions import Known
from heliograph.requests import Entry, blanking


def end_span(request: Request, status: int, code: str) -> None:
    if request.span is None:
        return
    said: dict[str, str | int] = {
        "http.request.method": request.method,
        "http.response.status_code": status,
        "request_id": request.request_id,
    }
    if request.route:
        said["http.route"] = request.route
    if isinstance(request.session, Known) and request.session.organization_id is not None:
        said["organization_id"] = str(request.session.organization_id)
    if code:
        said["error.type"] = code
    request.span.end(said, name=f"POST {request.route or 'page'}", failed=status >= 500)


def remember(request: Request, status: int, code: str, began: float) -> None:
    """An act of the dashboard stands in the log of requests beside those of programs; what was typed does not."""
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
