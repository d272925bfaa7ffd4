"""Meta's error codes as the Graph API simulator returns them, and the one exception that its rules raise.

The same codes appear in HTTP responses (`GraphError.body`) and in status or message webhooks (`webhook_error`). The
HTTP statuses are the simulator's choice: Meta does not publish them, so clients must rely only on their class.
"""

from __future__ import annotations

from typing import Any

#: code: (HTTP status, title).
CODES: dict[int, tuple[int, str]] = {
    0: (401, "AuthException"),
    1: (400, "API Unknown"),
    2: (503, "API Service"),
    3: (500, "API Method"),
    4: (429, "API Too Many Calls"),
    10: (403, "Permission Denied"),
    33: (400, "Parameter value is not valid"),
    100: (400, "Invalid parameter"),
    190: (401, "Access token has expired"),
    200: (403, "API Permission"),
    368: (403, "Temporarily blocked for policies violations"),
    2500: (400, "Unknown path components"),
    80007: (429, "Rate limit issues"),
    80008: (429, "There have been too many calls to this WhatsApp Business account"),
    130403: (400, "Business has blocked this user"),
    130429: (429, "Rate limit hit"),
    130472: (400, "User's number is part of an experiment"),
    130497: (403, "Business account is restricted from messaging users in this country"),
    131000: (500, "Something went wrong"),
    131005: (403, "Access denied"),
    131008: (400, "Required parameter is missing"),
    131009: (400, "Parameter value is not valid"),
    131016: (503, "Service unavailable"),
    131021: (400, "Recipient cannot be sender"),
    131026: (400, "Message undeliverable"),
    131030: (400, "Recipient phone number not in allowed list"),
    131031: (403, "Account has been locked"),
    131037: (400, "WhatsApp provided number needs display name approval before message can be sent"),
    131042: (400, "Business eligibility payment issue"),
    131043: (400, "Message expired"),
    131045: (500, "Incorrect certificate"),
    131047: (400, "Re-engagement message"),
    131048: (429, "Spam rate limit hit"),
    131049: (400, "This message was not delivered to maintain healthy ecosystem engagement"),
    131050: (400, "User has stopped marketing messages from this business"),
    131051: (400, "Unsupported message type"),
    131052: (400, "Media download error"),
    131053: (400, "Media upload error"),
    131055: (400, "Method not allowed"),
    131056: (429, "(Business Account, Consumer Account) pair rate limit hit"),
    131057: (500, "Account in maintenance mode"),
    131062: (400, "Recipient is not allowed for this message"),
    131063: (400, "Marketing templates are switched off"),
    131064: (400, "Account is limited for misclassified templates"),
    132000: (400, "Number of parameters does not match the expected number of params"),
    132001: (404, "Template name does not exist in the translation"),
    132005: (400, "Translated text too long"),
    132007: (400, "Template format character policy violated"),
    132012: (400, "Template parameter format mismatch"),
    132015: (400, "Template is paused"),
    132016: (400, "Template is disabled"),
    132018: (400, "Template parameter validation failed"),
    132068: (400, "Flow is blocked"),
    132069: (400, "Flow is throttled"),
    133000: (500, "Incomplete deregistration"),
    133004: (503, "Server temporarily unavailable"),
    133005: (400, "Two step verification PIN mismatch"),
    133006: (400, "Phone number re-verification needed"),
    133008: (400, "Too many two step verification PIN guesses"),
    133009: (400, "Two step verification PIN guessed too fast"),
    133010: (400, "Phone number not registered"),
    133015: (400, "Please wait a few minutes before attempting to register this phone number"),
    133016: (400, "Account register deregister rate limit exceeded"),
    134011: (400, "WhatsApp Payments terms are pending"),
    135000: (400, "Generic user error"),
    137000: (400, "Identity key hash mismatch"),
}
#: The human-readable details in a failed status.
DETAILS = {
    131026: "Message undeliverable.",
    131042: "Business eligibility payment issue.",
    131047: "Last customer reply to this number is older than 24 hours.",
    131048: "Message failed to send because there are restrictions on how many messages can be sent from this number.",
    131049: "In order to maintain a healthy ecosystem engagement, the message failed to be delivered.",
    131051: "Message type is currently not supported.",
    132015: "Template is paused due to low quality.",
}
HREF = "/documentation/business-messaging/whatsapp/support/error-codes"


class GraphError(Exception):
    """A request that Meta refuses. `http` overrides the HTTP status of the code."""

    def __init__(
        self,
        code: int,
        details: str = "",
        *,
        subcode: int = 0,
        message: str = "",
        http: int = 0,
        transient: bool = False,
        type: str = "OAuthException",
    ) -> None:
        status, title = CODES.get(code, (400, "Unknown error"))
        self.code, self.details, self.subcode, self.transient = (
            code,
            details or DETAILS.get(code, ""),
            subcode,
            transient,
        )
        self.http = http or status
        self.type = type
        self.message = message or f"(#{code}) {title}"
        super().__init__(f"{self.message}: {details}")

    def body(self, trace: str) -> dict[str, Any]:
        """The response's JSON; `trace` is the trace id that support would ask for."""
        error: dict[str, Any] = {"message": self.message, "type": self.type, "code": self.code}
        if self.subcode:
            error["error_subcode"] = self.subcode
        if self.details:
            error["error_data"] = {"messaging_product": "whatsapp", "details": self.details}
        if self.transient:
            error["is_transient"] = True
        error["fbtrace_id"] = trace
        return {"error": error}


def webhook_error(code: int, details: str = "") -> dict[str, Any]:
    """An error in the form that statuses, inbound messages and values use."""
    title = CODES.get(code, (400, "Unknown error"))[1]
    return {
        "code": code,
        "title": title,
        "message": title,
        "error_data": {"details": details or DETAILS.get(code) or f"{title}."},
        "href": HREF,
    }


def missing_object(id: str, method: str = "GET") -> GraphError:
    """The error for an id that is unknown or invisible to this token, or does not allow this method: Meta does not say
    which."""
    return GraphError(
        100,
        subcode=33,
        type="GraphMethodException",
        message=f"Unsupported {method.lower()} request. Object with ID '{id}' does not exist, cannot be loaded due to "
        "missing permissions, or does not support this operation. Please read the Graph API documentation at "
        "https://developers.facebook.com/docs/graph-api",
    )
