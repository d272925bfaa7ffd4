"""Management events about templates, numbers and accounts, each with the change behind it.

Events and GETs agree, at once or after the option `lag`. The rule nobody may break: an event never leaves without its
change, so that a client that reads again after an event finds what the event said.
"""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.simulators.graph.callbacks.webhooks import Item
from heliograph.simulators.graph.objects import SimulatedAccount, Template
from heliograph.simulators.graph.state import World

_ADVANCE_SECONDS = 86_400
_MAINTENANCE_SECONDS = 60.0
#: Event: the template's status afterwards. Events not listed (FLAGGED, REINSTATED, UNARCHIVED) make it sendable.
_STATUSES = {
    "REJECTED": "REJECTED",
    "PENDING": "PENDING",
    "PAUSED": "PAUSED",
    "DISABLED": "DISABLED",
    "IN_APPEAL": "IN_APPEAL",
    "PENDING_DELETION": "PENDING_DELETION",
    "DELETED": "DELETED",
    "LIMIT_EXCEEDED": "LIMIT_EXCEEDED",
    "LOCKED": "LOCKED",
    "ARCHIVED": "ARCHIVED",
}
_PAUSES = ("FIRST_PAUSE", "SECOND_PAUSE")


class TemplateEvent(msgspec.Struct, kw_only=True):
    """Something that happens to a template: an event, or `quality`, `category_notice`, `category`, `components`."""

    template: str
    event: str
    account: str = ""
    language: str = ""
    reason: str = "NONE"
    #: The new category of `category` and `category_notice`, or the new score of `quality`.
    value: str = ""
    #: How many seconds ago it happened, for an event that comes late.
    ago: float = 0.0
    #: Whether the template really changes; False: Meta sends the event, but nothing changed.
    true: bool = True


class NumberEvent(msgspec.Struct, kw_only=True):
    """Something that happens to a number: THROUGHPUT_UPGRADE, ONBOARDING, FLAGGED, UNFLAGGED, or `name`, `quality`."""

    event: str
    number: str = ""
    #: The tier in the event, or the new quality or name decision.
    value: str = "TIER_UNLIMITED"


class AccountEvent(msgspec.Struct, kw_only=True):
    """Something that happens to an account: an event of `account_update`, or `capability`, `review`, `alert`."""

    event: str
    account: str = ""
    #: Type of a restriction or violation, state of a ban, or the limit of `capability` (2000 or TIER_2K).
    value: str | int = ""
    #: Restrictions end after this many seconds.
    seconds: float = 604_800.0


def template_event(world: World, given: TemplateEvent) -> Item:
    """Perform the event; returns its update. Raises KeyError for an unknown template."""
    template = world.template_of(given.template, given.account, given.language)
    value: dict[str, Any] = {
        "message_template_id": int(template.id) if template.id.isdigit() else template.id,
        "message_template_name": template.name,
        "message_template_language": template.language,
    }
    field, event = "message_template_status_update", given.event
    changes: dict[str, Any] = {}
    if event == "quality":
        field = "message_template_quality_update"
        changes = {"quality": given.value}
        value |= {"previous_quality_score": template.quality, "new_quality_score": given.value}
    elif event == "category_notice":
        # Sent 24 hours ahead: `new_category` is the current one, `correct_category` the future one.
        field = "template_category_update"
        changes = {"correct_category": given.value}
        value |= {
            "new_category": template.category,
            "correct_category": given.value,
            "category_update_timestamp": int(world.clock.now()) + _ADVANCE_SECONDS,
        }
    elif event == "category":
        field = "template_category_update"
        changes = {"category": given.value, "previous_category": template.category, "correct_category": None}
        value |= {"previous_category": template.category, "new_category": given.value}
    elif event == "components":
        field = "message_template_components_update"
        value |= {"message_template_element": given.value}
    else:
        changes = {"status": _STATUSES.get(event, "APPROVED")}
        value = {"event": event} | value | {"message_template_category": template.category, "reason": given.reason}
        if event == "PAUSED":
            pauses = template.pauses + 1
            changes["pauses"] = pauses
            title = _PAUSES[min(pauses, len(_PAUSES)) - 1]
            value["other_info"] = {"title": title, "description": "Quality too low"}
        elif event == "DISABLED":
            value["other_info"] = {"title": "DISABLED", "description": "Quality too low"}
            value["disable_info"] = {"disable_date": int(world.clock.now())}
        elif event == "REJECTED":
            changes["rejected_reason"] = given.reason
            value["rejection_info"] = {"reason": given.reason, "recommendation": "Change the text."}
    if given.true:
        world.change(template, **changes)
        if event == "DELETED":
            world.drop_template(template)
    return _item(world, template.account, field, value, given.ago)


def number_event(world: World, given: NumberEvent) -> Item:
    """Perform the event; returns its update. Raises KeyError for an unknown number."""
    number = world.number_of(given.number)
    event = given.event
    if event == "name":
        world.change(number, name_status=given.value)
        value: dict[str, Any] = {
            "display_phone_number": number.digits,
            "decision": given.value,
            "requested_verified_name": number.verified_name,
            "rejection_reason": None,
        }
        return _item(world, number.account, "phone_number_name_update", value)
    if event == "quality":
        world.change(number, quality_rating=given.value)
        event = "FLAGGED" if given.value == "RED" else "UNFLAGGED"
    elif event == "THROUGHPUT_UPGRADE":
        until = world.clock.now() + _MAINTENANCE_SECONDS
        world.change(number, throughput="HIGH", limit=given.value, maintenance_until=until)
        world.buckets.pop(number.id, None)
    else:
        world.change(number, status="FLAGGED" if event == "FLAGGED" else "CONNECTED", limit=given.value)
    value = {"display_phone_number": number.digits, "event": event}
    value |= {"max_daily_conversations_per_business": number.limit, "current_limit": number.limit}
    return _item(world, number.account, "phone_number_quality_update", value)


def account_event(world: World, given: AccountEvent) -> Item:
    """Perform the event; returns its update. Raises KeyError for an unknown account."""
    account = world.account_of(given.account)
    event, value = given.event, given.value
    if event == "capability":
        made: dict[str, Any] = {"max_daily_conversations_per_business": value, "max_phone_numbers_per_waba": 25}
        tier = value if isinstance(value, str) else _tier(value)
        for number in world.numbers.values():
            if number.account == account.id:
                world.change(number, limit=tier)
        return _item(world, account.id, "business_capability_update", made)
    if event == "review":
        world.change(account, account_review_status=str(value))
        return _item(world, account.id, "account_review_update", {"decision": value})
    if event == "alert":
        made = {"entity_type": "WABA", "entity_id": account.id, "alert_type": value, "alert_severity": "WARNING"}
        return _item(world, account.id, "account_alerts", made)
    made = {"event": event}
    if event == "ACCOUNT_RESTRICTION":
        restricted = str(value or "RESTRICTED_BIZ_INITIATED_MESSAGING")
        world.change(account, restrictions=[*account.restrictions, restricted])
        until = world.clock.now() + given.seconds
        world.clock.put(given.seconds, _unrestrict, world, account, restricted)
        made["restriction_info"] = [{"restriction_type": restricted, "expiration": int(until)}]
    elif event == "DISABLED_UPDATE":
        state = str(value or "DISABLE")
        refusal = {"DISABLE": 131031, "REINSTATE": 0}.get(state, account.refusal)
        world.change(account, refusal=refusal)
        made["ban_info"] = {"waba_ban_state": state, "waba_ban_date": "November 27, 2026"}
    elif event == "ACCOUNT_VIOLATION":
        made["violation_info"] = {"violation_type": value or "SCAM"}
    elif event == "ACCOUNT_DELETED":
        world.change(account, refusal=131031)
    elif event.startswith("PARTNER"):
        made["waba_info"] = {"waba_id": account.id, "owner_business_id": account.business}
        return _item(world, account.business, "account_update", made)
    elif event == "VOLUME_BASED_PRICING_TIER_UPDATE":
        made["volume_tier_info"] = {
            "tier_update_time": int(world.clock.now()),
            "pricing_category": "UTILITY",
            "tier": str(value or "25000:100000"),
            "effective_month": "2026-12",
            "region": "Rest of Africa",
        }
    return _item(world, account.id, "account_update", made)


def _unrestrict(world: World, account: SimulatedAccount, restricted: str) -> None:
    world.change(account, restrictions=[one for one in account.restrictions if one != restricted])


def _tier(limit: int) -> str:
    if limit < 0:
        return "TIER_UNLIMITED"
    return f"TIER_{limit // 1000}K" if limit >= 1000 else f"TIER_{limit}"


def _item(world: World, account: str, field: str, value: dict[str, Any], ago: float = 0.0) -> Item:
    world.counters.events += 1
    return Item(account, field, "", value, time=int(world.clock.now() - ago))


def reviewed(world: World, template: Template) -> Item | None:
    """Review a pending template: approve it, unless it has been deleted or decided on meanwhile."""
    if world.templates.get(template.id) is not template or template.status != "PENDING":
        return None
    return template_event(world, TemplateEvent(template=template.id, event="APPROVED"))
