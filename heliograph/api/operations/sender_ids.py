"""Sender IDs: shapes and handlers. The rules are `sms.accepting.sender_ids`; the decisions are operators'."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import CreatedAt, Items, Success, Time
from heliograph.base.database.clock import iso
from heliograph.sms.accepting import sender_ids
from heliograph.sms.accepting.sender_ids import SenderIdAlreadyExists, TooManyPending


class CreateSenderIdRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sender ID to request."""

    value: Annotated[
        str,
        Meta(
            description=(
                "The name or number to send from: 3 to 11 letters, digits, spaces or . - _ & with at least "
                "one letter, or 3 to 15 digits."
            ),
            examples=["ACME"],
            extra_json_schema={
                "pattern": "^(?! )(?!.* $)(?!.*  )(?=.*[A-Za-z])[A-Za-z0-9 ._&-]{3,11}$|^[0-9]{3,15}$",
                "minLength": 3,
                "maxLength": 15,
            },
        ),
    ]


class SenderId(msgspec.Struct):
    """A name or number that messages can be sent from once it is approved."""

    id: Annotated[UUID, Meta(description="Id of the sender ID; pass it as `senderId` in a send.")]
    value: Annotated[str, Meta(description="The name or number that recipients see.")]
    status: Annotated[
        Literal["pending", "approved", "rejected", "suspended"],
        Meta(description="Only an `approved` sender ID can send."),
    ]
    is_default: Annotated[bool, Meta(description="Whether it is used when a send names no sender.")]
    rejection_reason: Annotated[
        str | None, Meta(description="Why it was rejected or suspended, if a reason was given.")
    ]
    created_at: CreatedAt
    reviewed_at: Annotated[Time | None, Meta(description="When it was reviewed; null while pending.")]


class SenderIdRequested(msgspec.Struct, rename="camel"):
    """The sender ID in its current state."""

    success: Success
    sender_id: Annotated[SenderId, Meta(description="The sender ID.")]


class SenderIdList(msgspec.Struct):
    """All sender IDs, in any status, oldest first."""

    success: Success
    items: Items[SenderId]


async def list_sender_ids(call: Call) -> SenderIdList:
    """List sender IDs."""
    return SenderIdList(True, [_shown(each) for each in await sender_ids.list_all(call.conn, call.actor)])


async def canonical(body: CreateSenderIdRequest) -> CreateSenderIdRequest:
    """Raises Invalid."""
    sender_ids.check(body.value)
    return body


@operation(status=201, canonical=canonical, live_only=True, refusals=(SenderIdAlreadyExists, TooManyPending))
async def create_sender_id_request(call: Call, body: CreateSenderIdRequest) -> SenderIdRequested:
    """Request a sender ID.

    A new or previously rejected value becomes pending; a pending one is returned unchanged. An operator reviews it, and
    the event `sender_id.approved` or `sender_id.rejected` reports the decision.
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
