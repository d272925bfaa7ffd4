"""`POST /{phone number id}/messages`: Meta's checks of a send, in order, and its responses.

token → number → state of number and account → format of the body → recipient is not the sender → rate limits →
template → its parameters → the recipient's script → service window. The rule nobody may break: a refused send leaves
no trace but its count against the limits; an accepted send reaches its user even if the response never does.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from heliograph.base import phones
from heliograph.simulators.graph.callbacks.scripts import Script, Step
from heliograph.simulators.graph.objects import MESSAGING, Message, Number, SimulatedAccount, Template, Token, User
from heliograph.simulators.graph.operations import parameters
from heliograph.simulators.graph.operations.errors import GraphError, missing_object
from heliograph.simulators.graph.operations.limits import Bucket, Daily
from heliograph.simulators.graph.state import ENTRY_POINT_SECONDS, World

_MEDIA = ("image", "video", "audio", "document", "sticker")
_TYPES = (*_MEDIA, "text", "template", "interactive", "location", "contacts", "reaction")
_PUNCTUATION = re.compile(r"[ ()-]")
_LONGEST_TRACKER = 512
#: Replies per month and number that are free, from October 2026 on.
FREE_TIER = 1_000


class Accepted(msgspec.Struct, frozen=True):
    """An accepted send: the response's JSON, and the outcome of the message."""

    answer: dict[str, Any]
    script: Script
    message: Message | None


def send(world: World, number: Number, account: SimulatedAccount, version: float, body: Any) -> Accepted:
    """Accept a send from a number returned by `usable`. Raises GraphError."""
    if not isinstance(body, dict):
        raise GraphError(100, "The request body is not a JSON object")
    if "messaging_product" not in body:
        raise GraphError(100, message="(#100) The parameter messaging_product is required.")
    if body["messaging_product"] != "whatsapp":
        raise GraphError(100, message="(#100) Param messaging_product must be one of {WHATSAPP}")
    if body.get("status") == "read":
        return _mark_read(body)
    kind, content = _content(body)
    to, user = _recipient(world, number, body)
    tracker = body.get("biz_opaque_callback_data") or ""
    if not isinstance(tracker, str) or len(tracker) > _LONGEST_TRACKER:
        raise GraphError(100, f"biz_opaque_callback_data is not a text of at most {_LONGEST_TRACKER} characters")
    if user.wa_id == number.digits:
        raise GraphError(131021, "Sender and recipient phone number is the same")

    inside = world.window_open(number.id, user)
    breached = _limited(world, number, account, user, inside)
    category, template = "service", None
    if kind == "template":
        template = _template(world, account, content)
        mismatch = 132018 if version >= 23 else 132012
        parameters.check(parameters.wanted(template), content.get("components"), mismatch=mismatch)
        category = template.category.lower()
        if category == "authentication" and "to" not in body:
            raise GraphError(131062, "Authentication templates cannot be sent to a business-scoped user id")
        if "RESTRICTED_BIZ_INITIATED_MESSAGING" in account.restrictions:
            raise GraphError(131031, "The account may not start conversations")
    elif "RESTRICTED_CUSTOMER_INITIATED_MESSAGING" in account.restrictions:
        raise GraphError(131031, "The account may not answer")

    script = world.scripts.choose(user.wa_id)
    if script.refuse:
        raise GraphError(script.refuse, transient=script.refuse in (131000, 131016, 2))
    if kind != "template" and not inside:
        if world.options.window_refusal == "sync":
            raise GraphError(131047)
        script = msgspec.structs.replace(script, steps=(Step("failed", 131047),))
    elif breached == "async":
        script = msgspec.structs.replace(script, steps=(Step("failed", 131048),))
    elif breached == "silent":
        script = msgspec.structs.replace(script, steps=())

    message = Message(
        id=world.wamid(user.key),
        number=number.id,
        account=account.id,
        user=user,
        type=kind,
        at=world.clock.now(),
        tracker=tracker,
        category=category,
        free=_free(world, number, user, category, inside),
        template=template.name if template is not None else "",
        content=content,
        to=to,
        statuses=[],
    )
    if not script.lost:
        world.keep(message)
    contact = {"input": to}
    if user.wa_id:
        contact["wa_id"] = user.wa_id
    if user.user_id:
        contact["user_id"] = user.user_id
    answered: dict[str, str] = {"id": message.id}
    if template is not None:
        answered["message_status"] = script.message_status
    return Accepted(
        {"messaging_product": "whatsapp", "contacts": [contact], "messages": [answered]},
        script,
        None if script.lost else message,
    )


def usable(world: World, number_id: str, token: Token) -> tuple[Number, SimulatedAccount]:
    """The number and its account, if this token may send from it now. Raises GraphError."""
    number = world.numbers.get(number_id)
    if number is not None and token.accounts is not None and number.account not in token.accounts:
        raise missing_object(number_id, "POST")
    if MESSAGING not in token.scopes:
        raise GraphError(token.denial, "The token lacks whatsapp_business_messaging")
    if number is None:
        raise missing_object(number_id, "POST")
    if number.status == "DELETED":
        raise GraphError(33, "The business phone number has been deleted")
    account = world.accounts[number.account]
    if not number.registered or number.status in ("PENDING", "UNVERIFIED", "DISCONNECTED"):
        raise GraphError(133010, "The account is not registered")
    if number.status in ("BANNED", "RESTRICTED"):
        raise GraphError(131031, "The phone number is banned or restricted")
    if account.refusal:
        raise GraphError(account.refusal)
    if number.name_status in ("DECLINED", "NONE"):
        raise GraphError(131037)
    if number.maintenance_until > world.clock.now():
        raise GraphError(131057, "The account is being upgraded", transient=True)
    if number.refusal:
        raise GraphError(number.refusal)
    return number, account


def _content(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    kind = body.get("type", "text")
    if not isinstance(kind, str):
        raise GraphError(131009, "type is not a string")
    kind = kind.lower()
    if body.get("recipient_type", "individual") not in ("individual", "group"):
        raise GraphError(131009, "recipient_type is not individual or group")
    if kind not in _TYPES:
        raise GraphError(131051, f"type {kind!r} is not supported")
    content = body.get(kind)
    if content is None:
        raise GraphError(131008, f"Parameter {kind} is required")
    if kind == "contacts":
        return kind, {"contacts": content}
    if not isinstance(content, dict):
        raise GraphError(131009, f"Parameter {kind} is not an object")
    context = body.get("context")
    if context is not None and (not isinstance(context, dict) or not isinstance(context.get("message_id"), str)):
        raise GraphError(131009, "context has no message_id")
    if kind == "text":
        text = content.get("body")
        if not isinstance(text, str) or not text:
            raise GraphError(131008, "Parameter text.body is required")
        if len(text) > 4096:
            raise GraphError(100, message="(#100) Param text['body'] must be at most 4096 characters long.")
    elif kind == "template":
        if not isinstance(content.get("name"), str) or not content["name"]:
            raise GraphError(131008, "Parameter template.name is required")
        language = content.get("language")
        if not isinstance(language, dict) or not isinstance(language.get("code"), str):
            raise GraphError(131008, "Parameter template.language.code is required")
    elif kind in _MEDIA and not (content.get("id") or content.get("link")):
        raise GraphError(131008, f"Parameter {kind}.id or {kind}.link is required")
    elif kind == "interactive" and not (content.get("type") and content.get("action")):
        raise GraphError(131008, "Parameters interactive.type and interactive.action are required")
    elif kind == "reaction" and not content.get("message_id"):
        raise GraphError(131008, "Parameter reaction.message_id is required")
    return kind, content


def _recipient(world: World, number: Number, body: dict[str, Any]) -> tuple[str, User]:
    to = body.get("to")
    if to is None:
        user_id = body.get("recipient")
        if user_id is None:
            raise GraphError(100, message="(#100) The parameter to is required.")
        user = world.user_by_id(str(user_id))
        if user is None:
            raise GraphError(131009, "recipient is not a user this business knows")
        return str(user_id), user
    text = _PUNCTUATION.sub("", str(to))
    if not text.lstrip("+").isdigit():
        raise GraphError(131009, "to is not a phone number")
    if not text.startswith("+") and (phones.parse("+" + text) is None or len(text) <= 10):
        # Meta may take a number without + for a local one, and then adds the sender's calling code.
        text = phones.calling_code("+" + number.digits) + text.lstrip("0")
    digits = text.lstrip("+")
    if phones.parse("+" + digits) is None:
        raise GraphError(131009, "to is not a phone number")
    return str(to), world.user(digits)


def _limited(world: World, number: Number, account: SimulatedAccount, user: User, inside: bool) -> str:
    """Count the send. Raises GraphError; returns the form in which a breach of the daily limit shows, or an empty
    string."""
    options, now = world.options, world.clock.now()
    if not world.take_throughput(number):
        raise GraphError(130429, "Cloud API message throughput has been reached.", transient=True)
    if options.pair_seconds:
        key = (number.id, user.key)
        pair = world.pairs.get(key)
        if pair is None:
            pair = world.pairs[key] = Bucket(1 / options.pair_seconds, options.pair_burst, now)
        if not pair.take(now):
            raise GraphError(131056, "Too many messages to this recipient in a short time.", transient=True)
    if options.tier and not inside:
        daily = world.daily.get(account.business)
        if daily is None:
            daily = world.daily[account.business] = Daily()
        if not daily.allows(user.key, options.tier, now):
            if options.tier_breach == "131048":
                raise GraphError(131048)
            return options.tier_breach
    return ""


def _template(world: World, account: SimulatedAccount, content: dict[str, Any]) -> Template:
    name, language = content["name"], content["language"]["code"]
    template = world.by_name.get((account.id, name, language))
    status = template.status if template is not None else ""
    if status == "PAUSED":
        raise GraphError(132015, f"template ({name}) in {language} is paused")
    if status == "DISABLED":
        raise GraphError(132016, f"template ({name}) in {language} is disabled")
    if template is None or status != "APPROVED":
        raise GraphError(132001, f"template name ({name}) does not exist in {language}")
    return template


def _free(world: World, number: Number, user: User, category: str, inside: bool) -> str:
    """`pricing.type` of the message."""
    now, key = world.clock.now(), (number.id, user.key)
    entered = world.entry_points.get(key)
    if entered is not None and entered < 0 and now + entered < 86_400:
        # The user came from an advertisement and this is the reply: everything is free for 72 hours from now.
        entered = world.entry_points[key] = now + ENTRY_POINT_SECONDS
    if entered is not None and entered > now:
        return "free_entry_point"
    if world.options.pricing_rules == "2025-07":
        return "free_customer_service" if category == "service" or (category == "utility" and inside) else "regular"
    if category == "service":
        month = int(now // 2_629_746)
        served = world.served[number.id, month] = world.served.get((number.id, month), 0) + 1
        return "free_customer_service" if served <= FREE_TIER else "regular"
    return "regular"


def _mark_read(body: dict[str, Any]) -> Accepted:
    wamid = body.get("message_id")
    if not isinstance(wamid, str) or not wamid.startswith("wamid."):
        raise GraphError(131009, "message_id is not the id of a message")
    return Accepted({"success": True}, Script(), None)
