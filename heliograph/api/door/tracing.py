"""The attributes of a request's span: operation, outcome and our ids, by OpenTelemetry's conventions for HTTP."""

from __future__ import annotations

from heliograph.api.door.operation import Call


def end_span(call: Call, prefix: str, status: int, code: str) -> None:
    """End the span of an answered request; `code`: that of a refusal, if any. Does nothing if the request is not
    traced."""
    if call.span is None:
        return
    said: dict[str, str | int] = {
        "http.request.method": call.method,
        "http.response.status_code": status,
        "request_id": call.request_id,
    }
    name = call.method
    if hasattr(call, "operation"):
        route = prefix + call.operation.path
        said |= {"http.route": route, "operation": call.operation.id}
        name = f"{call.method} {route}"
    if hasattr(call, "actor"):
        said["organization_id"] = str(call.actor.organization_id)
    if code:
        said["error.type"] = code
    call.span.end(said, name=name, failed=status >= 500)
