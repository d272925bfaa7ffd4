"""Settings of the organization: shapes and handlers. The rules are `people.policy` and `people.noticing.choices`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from heliograph.accounts import send_defaults
from heliograph.accounts.send_defaults import APPROVAL, MESSAGE_DAYS, TEXT_DAYS, VALIDITY, SendDefaults
from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import Success, Time
from heliograph.base.database.clock import iso
from heliograph.base.errors import Invalid, Problems
from heliograph.notices.kinds import KINDS, WAYS
from heliograph.people import policy
from heliograph.people.noticing import choices
from heliograph.retention import shortening
from heliograph.retention.shortening import Deleted

# In JSON 60.0 is the same number as 60, so it is accepted as an integer.
WHOLE: dict[str, Any] = {"multiple_of": 1, "extra_json_schema": {"type": "integer"}}
Guarantee = Literal["at_least_once", "at_most_once"]
QuietHours = Annotated[
    str,
    Meta(
        description=(
            "When marketing waits, in the recipient's time: `country` (as is usual there), `off`, or hours such as "
            "`20:00-08:00`."
        ),
        examples=["country", "20:00-08:00"],
        max_length=11,
    ),
]


class AccountSettings(msgspec.Struct, rename="camel"):
    """Defaults for sends, and how people are notified."""

    quiet_hours: QuietHours
    delivery_guarantee: Annotated[Guarantee, Meta(description="Default for sends that do not specify one.")]
    validity_seconds: Annotated[
        int | None, Meta(description="Default validity of a message; null: as long as the retry schedule.")
    ]
    text_days: Annotated[
        int | None, Meta(description="Days after which texts are erased; null: the installation's setting.")
    ]
    message_days: Annotated[
        int | None,
        Meta(
            description=("Days after which messages are removed with their numbers; null: the installation's setting.")
        ),
    ]
    campaign_approval_above: Annotated[
        int | None,
        Meta(description="Campaigns with more recipients than this need a second person's approval; null: none does."),
    ]
    notices: Annotated[
        dict[str, list[str]],
        Meta(
            description=f"How people are notified, by kind of notice: {', '.join(WAYS)}. People may choose otherwise."
        ),
    ]


class ChangeAccountSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Changes to the settings. Omitted fields are not changed."""

    quiet_hours: QuietHours | UnsetType = UNSET
    delivery_guarantee: (
        Annotated[Guarantee, Meta(description="Default for sends that do not specify one.")] | UnsetType
    ) = UNSET
    validity_seconds: (
        Annotated[
            Annotated[float, Meta(ge=VALIDITY[0], le=VALIDITY[1], **WHOLE)] | None,
            Meta(description="Default validity of a message; null: as long as the retry schedule."),
        ]
        | UnsetType
    ) = UNSET
    text_days: (
        Annotated[
            Annotated[float, Meta(ge=TEXT_DAYS[0], le=TEXT_DAYS[1], **WHOLE)] | None,
            Meta(description="Days after which texts are erased; null: the installation's setting."),
        ]
        | UnsetType
    ) = UNSET
    message_days: (
        Annotated[
            Annotated[float, Meta(ge=MESSAGE_DAYS[0], le=MESSAGE_DAYS[1], **WHOLE)] | None,
            Meta(
                description=(
                    "Days after which messages are removed with their numbers; null: with those of the whole "
                    "installation. Removed messages cannot be restored."
                )
            ),
        ]
        | UnsetType
    ) = UNSET
    campaign_approval_above: (
        Annotated[
            Annotated[float, Meta(ge=APPROVAL[0], le=APPROVAL[1], **WHOLE)] | None,
            Meta(
                description="Campaigns with more recipients than this need a second person's approval; null: none does."
            ),
        ]
        | UnsetType
    ) = UNSET
    notices: (
        Annotated[
            dict[str, list[str] | None],
            Meta(description="Ways by kind of notice; null: the default. Omitted kinds are not changed."),
        ]
        | UnsetType
    ) = UNSET


class DeletedMessages(msgspec.Struct, rename="camel"):
    """What a shorter time deletes."""

    before: Annotated[Time, Meta(description="Everything older is deleted.")]
    sent: Annotated[
        int,
        Meta(
            description=(
                "Approximate number of live messages sent in that time, by whole days. Test messages and received "
                "ones are deleted too, but not counted."
            )
        ),
    ]


class AccountSettingsAnswer(msgspec.Struct):
    """The current settings."""

    success: Success
    settings: Annotated[AccountSettings, Meta(description="The settings.")]


class ChangedAccountSettings(AccountSettingsAnswer, rename="camel"):
    """The current settings, and what the change deletes."""

    erased_texts: Annotated[
        DeletedMessages | None,
        Meta(description="Messages whose texts are erased because the time was shortened; null: none."),
    ]
    removed_messages: Annotated[
        DeletedMessages | None,
        Meta(description="Messages that are removed, with their texts and numbers, because the time was shortened."),
    ]


async def get_account_settings(call: Call) -> AccountSettingsAnswer:
    """Get the organization's settings."""
    defaults = await send_defaults.get(call.conn, organization_id=call.actor.organization_id)
    chosen = await choices.get(call.conn, call.actor)
    return AccountSettingsAnswer(True, _shown(defaults, chosen.organization))


async def changes(body: ChangeAccountSettings) -> ChangeAccountSettings:
    """The changes requested, with the ways of notices as sets. Raises Invalid with all errors, also if there are
    none."""
    if body == ChangeAccountSettings():
        *others, last = (f"`{name}`" for name in ChangeAccountSettings.__struct_encode_fields__)
        raise Invalid(("quietHours", "required", f"give what to change: {', '.join(others)} or {last}"))
    wrong = Problems()
    if body.quiet_hours is not UNSET:
        with wrong.gathering(), _named_publicly():
            send_defaults.check_quiet_hours(body.quiet_hours)
    if body.notices is not UNSET:
        with wrong.gathering(), _named_publicly():
            choices.check_for_all(body.notices)
    wrong.report()
    if body.notices is UNSET:
        return body
    notices = {kind: None if ways is None else sorted(set(ways)) for kind, ways in body.notices.items()}
    return msgspec.structs.replace(body, notices=notices)


@operation(canonical=changes, live_only=True)
async def change_account_settings(call: Call, body: ChangeAccountSettings) -> ChangedAccountSettings:
    """Change the organization's settings.

    They apply to what is accepted from then on, in every process within a second. A shorter `textDays` or `messageDays`
    also deletes what is older than that, within hours and permanently: the response says how much.
    """
    defaults_changed: dict[str, Any] = {
        "guarantee": None if body.delivery_guarantee is UNSET else body.delivery_guarantee,
        "quiet_hours": None if body.quiet_hours is UNSET else body.quiet_hours,
        "validity_seconds": _whole(body.validity_seconds),
        "text_days": _whole(body.text_days),
        "message_days": _whole(body.message_days),
        "approval_above": _whole(body.campaign_approval_above),
    }
    wrong = Problems()
    with wrong.gathering(), _named_publicly():
        defaults, shortened = await shortening.change(
            call.conn,
            call.services.settings,
            organization_id=call.actor.organization_id,
            apply=partial(policy.change_defaults, call.conn, call.actor, **defaults_changed),
            is_agreed=lambda _: True,
        )
    with wrong.gathering(), _named_publicly():
        if body.notices is UNSET:
            chosen = (await choices.get(call.conn, call.actor)).organization
        else:
            chosen = await choices.choose_for_all(call.conn, call.actor, ways=body.notices)
    wrong.report()
    return ChangedAccountSettings(
        True, _shown(defaults, chosen), _deleted(shortened.texts), _deleted(shortened.messages)
    )


def _deleted(found: Deleted | None) -> DeletedMessages | None:
    return None if found is None else DeletedMessages(iso(found.before), found.sent)


#: The rules' field names, by their public names.
NAMES = {
    "guarantee": "deliveryGuarantee",
    "quiet_hours": "quietHours",
    "validity_seconds": "validitySeconds",
    "text_days": "textDays",
    "message_days": "messageDays",
    "approval_above": "campaignApprovalAbove",
}


def _whole(number: float | UnsetType | None) -> int | UnsetType | None:
    return int(number) if isinstance(number, float) else number


@contextlib.contextmanager
def _named_publicly() -> Iterator[None]:
    """Fields in an Invalid raised within get their public names."""
    try:
        yield
    except Invalid as refusal:
        raise Invalid(
            *(
                (_public(one["field"]), one["issue"], one["message"].replace(one["field"], _public(one["field"])))
                for one in refusal.details["fields"]
            )
        ) from None


def _public(field: str) -> str:
    return NAMES.get(field, field.replace("ways", "notices", 1))


def _shown(defaults: SendDefaults, chosen: choices.Chosen) -> AccountSettings:
    return AccountSettings(
        quiet_hours=defaults.quiet_hours,
        delivery_guarantee=defaults.guarantee,  # type: ignore[arg-type]
        validity_seconds=defaults.validity_seconds,
        text_days=defaults.text_days,
        message_days=defaults.message_days,
        campaign_approval_above=defaults.approval_above,
        notices={kind: list(chosen.get(kind, known.ways)) for kind, known in KINDS.items()},
    )
