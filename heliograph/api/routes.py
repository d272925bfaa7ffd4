"""The route table: one line an operation, a mirror of the contract's table. A test holds them together."""

from __future__ import annotations

from heliograph.accounts.organizations import OrganizationSuspended
from heliograph.api import discovery, sms
from heliograph.api.operation import REQUIRED, Operation
from heliograph.sms import accept
from heliograph.sms.sender_ids import SenderIdNotApproved

PREFIX = "/v1"

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/",
        id="getApiIndex",
        summary="Version and addresses",
        response=discovery.Index,
        handler=discovery.get_index,
    ),
    Operation(
        method="GET",
        path="/health",
        id="getHealth",
        summary="Health snapshot",
        response=discovery.Health,
        handler=discovery.get_health,
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        id="getOpenApiDocument",
        summary="This document",
        response=discovery.Document,
        handler=discovery.get_openapi_document,
    ),
    Operation(
        method="POST",
        path="/sms/send",
        id="sendSms",
        summary="Send an SMS",
        scope="sms:send",
        bucket="sms_send",
        idempotency=REQUIRED,
        status=202,
        request=sms.SendSms,
        response=sms.SmsAccepted,
        refusals=(
            OrganizationSuspended,
            accept.DestinationNotAllowed,
            accept.RecipientOptedOut,
            SenderIdNotApproved,
            accept.QuotaExceeded,
        ),
        own_commit=True,
        handler=sms.send_sms,
    ),
)
