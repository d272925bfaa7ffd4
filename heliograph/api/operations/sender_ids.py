"""Sender IDs: shapes and handlers. The rules are `sms.sender_ids`; the decisions are operators'."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.accounts.api_keys import LiveKeyRequired
from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import CreatedAt, Items, Success, Time
from heliograph.base.clock import iso
from heliograph.sms import sender_ids
from heliograph.sms.sender_ids import SenderIdAlreadyExists, TooManyPending


class CreateSenderIdRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name or number to send as."""

    value: Annotated[
        str,
        Meta(
            description="3 to 11 letters, digits, spaces or . - _ & with a letter, or 3 to 15 digits.",
            examples=["ACME"],
            extra_json_schema={
                "pattern": "^(?! )(?!.* $)(?!.*  )(?=.*[A-Za-z])[A-Za-z0-9 ._&-]{3,11}$|^[0-9]{3,15}$",
                "minLength": 3,
                "maxLength": 15,
            },
        ),
    ]


class SenderId(msgspec.Struct):
    """A name or number that messages may be sent as, once it is approved."""

    id: Annotated[UUID, Meta(description="Give it as `senderId` of a send.")]
    value: Annotated[str, Meta(description="What recipients see.")]
    status: Annotated[
        Literal["pending", "approved", "rejected", "suspended"], Meta(description="Only an approved one sends.")
    ]
    is_default: Annotated[bool, Meta(description="Sends when a send names none.")]
    rejection_reason: Annotated[str | None, Meta(description="Why it is rejected or suspended, if that was said.")]
    created_at: CreatedAt
    reviewed_at: Annotated[Time | None, Meta(description="When it was decided on; null while it is pending.")]


class SenderIdRequested(msgspec.Struct, rename="camel"):
    """The record as it is now."""

    success: Success
    sender_id: Annotated[SenderId, Meta(description="The sender ID.")]


class SenderIdList(msgspec.Struct):
    """All sender IDs, oldest first, whatever their status."""

    success: Success
    items: Items[SenderId]


async def list_sender_ids(call: Call) -> SenderIdList:
    """List sender IDs."""
    return SenderIdList(True, [_shown(each) for each in await sender_ids.list_all(call.conn, call.actor)])


async def canonical(body: CreateSenderIdRequest) -> CreateSenderIdRequest:
    """Raises Invalid."""
    sender_ids.check(body.value)
    return body


@operation(
    status=201, canonical=canonical, live_only=True, refusals=(LiveKeyRequired, SenderIdAlreadyExists, TooManyPending)
)
async def create_sender_id_request(call: Call, body: CreateSenderIdRequest) -> SenderIdRequested:
    """Request a sender ID.

    A new or rejected value becomes pending; one that is pending stays as it is. Operators decide, and
    `sender_id.approved` or `sender_id.rejected` says what.
    """
    return SenderIdRequested(True, _shown(await sender_ids.request(call.conn, call.actor, value=body.value)))


def _shown(sender: sender_ids.SenderId) -> SenderId:
    return SenderId(
        id=sender.id,
        value=sender.value,
        status=sender.status,  # type: ignore[arg-type]
        is_default=sender.is_default,
        rejection_reason=sender.rejection_reason,
        created_at=iso(sender.created_at),
        reviewed_at=iso(sender.reviewed_at) if sender.reviewed_at else None,
    )
