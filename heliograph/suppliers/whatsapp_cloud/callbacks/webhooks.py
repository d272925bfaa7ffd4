"""Webhooks of the WhatsApp Cloud API: signature, handshake, and every item of a body. Pure.

One body may contain a thousand updates for many accounts: several entries, several changes, several messages and
statuses in each. Unknown fields, types and statuses are not errors.

The rule nobody may break: an item that cannot be read affects only itself. It becomes a PoisonItem or an UnknownItem,
and every other item of the body is still returned.

It has over 400 lines because the readers of all items share their tolerance for malformed fields.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Literal, TypeVar

import msgspec

from heliograph.base.crypto import Hmac
from heliograph.suppliers.whatsapp_cloud.callbacks.calls import calls_of
from heliograph.suppliers.whatsapp_cloud.callbacks.content import (
    content_of,
    is_forwarded,
    part,
    quoted,
    referral_of,
    text_id,
    words,
)
from heliograph.suppliers.whatsapp_cloud.callbacks.items import (
    OPENING,
    AlarmItem,
    ErrorNote,
    Item,
    MessageItem,
    PoisonItem,
    Pricing,
    StatusItem,
    UnknownItem,
)
from heliograph.suppliers.whatsapp_cloud.callbacks.management import (
    digits_of,
    event_item,
    fingerprint,
    id_of,
    number_of,
    time_of,
    time_or_none,
)
from heliograph.suppliers.whatsapp_cloud.tolerant_json import UNREADABLE, decoded, has_nul

#: Items read of one body; Meta puts up to a thousand updates into one. What follows is kept as one PoisonItem.
MOST = 2_000
_SIGNATURE = re.compile(rb"sha256=[0-9a-f]{64}")
#: Notices that a user has a new number, under an older name as well, or a new user id (which changes with the number).
_CHANGES = frozenset({"user_changed_number", "customer_changed_number", "user_changed_user_id"})
_FROM_USER_ID = re.compile(r"changed from ([A-Z]{2}\.(?:ENT\.)?[A-Za-z0-9]{1,128}) to ")
_Shape = TypeVar("_Shape", bound=msgspec.Struct)


def is_signature(header: bytes | None) -> bool:
    """Whether `X-Hub-Signature-256` has Meta's form; otherwise the body is not worth reading."""
    return header is not None and _SIGNATURE.fullmatch(header) is not None


def verify_signature(secrets: Iterable[bytes], raw: bytes | bytearray, header: str | bytes | None) -> bool:
    """Whether `X-Hub-Signature-256` is the signature of the bytes as received under one of `secrets`.

    There are two secrets while one is being replaced. All are tried, in constant time. Meta writes lower-case hex.
    """
    given = header.encode("utf-8", "replace") if isinstance(header, str) else header or b""
    right = False
    for secret in secrets:
        right |= hmac.compare_digest(given, signature(secret, raw))
    return right


def signature(secret: bytes, raw: bytes | bytearray) -> bytes:
    """The `X-Hub-Signature-256` of these bytes."""
    return b"sha256=" + _hmac(secret).digest(raw).hex().encode()


@lru_cache(maxsize=16)
def _hmac(secret: bytes) -> Hmac:
    """Cached: there are few apps, and preparing it takes longer than signing a callback."""
    return Hmac(secret)


def challenge(query: Mapping[str, str], verify_token: str) -> str | None:
    """The handshake: the text to answer with, as text/plain only; None: answer 403."""
    if query.get("hub.mode") != "subscribe" or not verify_token:
        return None
    given = query.get("hub.verify_token", "")
    if not hmac.compare_digest(given.encode("utf-8", "replace"), verify_token.encode()):
        return None
    return query.get("hub.challenge")


def parse(raw: bytes) -> Iterator[Item]:
    """Every item of a body, in order, up to MOST. Never raises. About 4 ms for a thousand statuses."""
    known = _only_statuses(raw)
    if known is not None:
        yield from known
        return
    items = _items(raw)
    yield from islice(items, MOST)
    if next(items, None) is not None:
        yield PoisonItem(reason=f"body: more than {MOST} items", raw=raw)


def _only_statuses(raw: bytes) -> list[StatusItem] | None:
    """The items of a body with nothing but statuses, all of the expected shape, as in most bodies: read in one pass,
    rather than layer by layer. None: it must be read layer by layer."""
    if b'"statuses"' not in raw or has_nul(raw):
        return None
    items: list[StatusItem] = []
    try:
        for entry in _ONLY_STATUSES.decode(raw).entry:
            waba_id, at = id_of(entry.id) or "", time_or_none(entry.time)
            for change in entry.changes:
                value = change.value
                if len(items) + len(value.statuses) > MOST:
                    return None
                contacts, number = _Contacts(value.contacts or []), _number(value.metadata)
                items += [_status(waba_id, number, at, contacts, one) for one in value.statuses]
    except UNREADABLE:
        return None
    return items


def _items(raw: bytes) -> Iterator[Item]:
    try:
        envelope = decoded(raw, _ENVELOPE.decode)
    except UNREADABLE as error:
        yield PoisonItem(reason=_why("body", error), raw=raw)
        return
    if envelope.object not in ("", "whatsapp_business_account"):
        yield UnknownItem(field=f"object {envelope.object}"[:100])
        return
    for one in envelope.entry:
        yield from _entry(bytes(one))


def _entry(raw: bytes) -> Iterator[Item]:
    try:
        entry, dropped = _read(raw, _Entry)
        if "changes" in dropped:
            raise ValueError("changes with an unexpected shape")
    except UNREADABLE as error:
        yield PoisonItem(reason=_why("entry", error), raw=raw)
        return
    waba_id = id_of(entry.id) or ""
    at = time_or_none(entry.time)
    for one in entry.changes:
        change_raw = bytes(one)
        try:
            change, _ = _read(change_raw, _Change)
            if change.field == "messages":
                yield from _value(waba_id, at, bytes(change.value))
                continue
            value = msgspec.json.decode(change.value)
            if change.field == "calls" and isinstance(value, dict):
                yield from calls_of(waba_id, at, value)
                continue
            item = event_item(waba_id, change.field, at, value) if isinstance(value, dict) else None
            yield item or UnknownItem(field=change.field[:100], waba_id=waba_id)
        except UNREADABLE as error:
            yield PoisonItem(reason=_why("change", error), raw=change_raw, waba_id=waba_id)


def _value(waba_id: str, at: datetime | None, raw: bytes) -> Iterator[Item]:
    value, dropped = _read(raw, _Value)
    for name in dropped & {"statuses", "messages", "metadata"}:
        yield PoisonItem(reason=f"value: {name} with an unexpected shape", raw=raw, waba_id=waba_id)
    contacts = _Contacts(value.contacts or [])
    number = _number(value.metadata)
    for one in value.statuses or ():
        try:
            yield _status(waba_id, number, at, contacts, _read(one, _Status)[0])
        except UNREADABLE as error:
            yield PoisonItem(reason=_why("status", error), raw=bytes(one), waba_id=waba_id)
    for one in value.messages or ():
        try:
            yield _message(waba_id, number, at, contacts, one)
        except UNREADABLE as error:
            yield PoisonItem(reason=_why("message", error), raw=bytes(one), waba_id=waba_id)
    if value.errors:
        yield AlarmItem(
            waba_id=waba_id,
            field="messages",
            at=at,
            fingerprint=fingerprint(value.errors),
            phone_number_id=number[0],
            errors=_notes(value.errors),
        )


def _number(metadata: _Metadata | None) -> tuple[str | None, str | None]:
    """Id and digits of the number that a value is about."""
    if metadata is None:
        return None, None
    return id_of(metadata.phone_number_id), digits_of(metadata.display_phone_number)


def _status(
    waba_id: str,
    number: tuple[str | None, str | None],
    at: datetime | None,
    contacts: _Contacts,
    status: _Status,
) -> StatusItem:
    number_id, number_digits = number
    if number_id is None:
        raise ValueError("no number")
    wamid = text_id(status.id)
    if wamid is None or not status.status:
        raise ValueError("no id or no status")
    recipient = digits_of(status.recipient_id)
    user_id = id_of(status.recipient_user_id)
    if recipient is None and user_id is None:
        user_id = id_of(status.recipient_id)
    if user_id is None:
        user_id = contacts.user_id(recipient)
    price = status.pricing
    pricing = None
    free = False
    if price is not None:
        pricing = Pricing(_lower(price.type), _lower(price.category), price.billable, price.pricing_model)
        free = pricing.type == "free_entry_point" or pricing.category == "referral_conversion"
    if status.conversation is not None and status.conversation.origin is not None:
        free = free or _lower(status.conversation.origin.type) == "referral_conversion"
    return StatusItem(
        waba_id=waba_id,
        phone_number_id=number_id,
        number_digits=number_digits,
        wamid=wamid,
        status=status.status.lower(),
        at=_at(status.timestamp, at),
        recipient=recipient,
        user_id=user_id,
        opaque=status.biz_opaque_callback_data or None,
        pricing=pricing,
        free_entry=free,
        errors=_notes(status.errors) if status.errors else (),
        group=status.recipient_type == "group",
    )


def _message(
    waba_id: str, number: tuple[str | None, str | None], at: datetime | None, contacts: _Contacts, raw: msgspec.Raw
) -> MessageItem:
    number_id, number_digits = number
    message = msgspec.json.decode(raw)
    if not isinstance(message, dict):
        raise ValueError("not an object")
    if number_id is None:
        raise ValueError("no number")
    wamid = text_id(message.get("id"))
    if wamid is None:
        raise ValueError("no id")
    type = words(message.get("type")) or "unknown"
    inner = part(message, type)
    is_change = type == "system" and words(inner.get("type")) in _CHANGES
    new_sender = digits_of(inner.get("wa_id") or inner.get("new_wa_id")) if is_change else None
    new_user_id = text_id(inner.get("user_id")) if is_change else None
    sender = digits_of(message.get("from"))
    user_id = text_id(message.get("from_user_id"))
    if is_change:
        sender = digits_of(inner.get("customer")) or sender
        user_id = _previous(inner, user_id, new_user_id)
    if sender is None and user_id is None:
        user_id = text_id(message.get("from"))
    if sender is None and user_id is None:
        sender, user_id = new_sender, new_user_id
    if sender is None and user_id is None:
        raise ValueError("no sender")
    known = contacts.of(sender, user_id)
    text, content = content_of(type, message)
    group = message.get("group_id") is not None
    return MessageItem(
        waba_id=waba_id,
        phone_number_id=number_id,
        number_digits=number_digits,
        wamid=wamid,
        sender=sender,
        user_id=user_id or (id_of(known.user_id) if known else None),
        at=_at(message.get("timestamp"), at),
        type=type,
        text=text,
        content=content,
        opens_window=type in OPENING and not group,
        referral=referral_of(message),
        quoted=quoted(message),
        is_forwarded=is_forwarded(message),
        profile_name=words(part({"profile": known.profile}, "profile").get("name")) if known else None,
        group=group,
        new_sender=new_sender,
        new_user_id=new_user_id,
    )


def _previous(system: Mapping[str, Any], user_id: str | None, new_user_id: str | None) -> str | None:
    """The user id that was replaced. `user_id`, whose notice it is, may be the new one; the text may say more."""
    told = text_id(system.get("previous_user_id"))
    if told or system.get("type") != "user_changed_user_id" or (user_id is not None and user_id != new_user_id):
        return told or user_id
    # What looks the same before it is the user's name.
    found = _FROM_USER_ID.findall(words(system.get("body")) or "")
    return found[-1] if found else user_id


class _Contacts:
    """The contacts of one value, by digits, then by user id; a single one without either belongs to every item."""

    def __init__(self, contacts: list[_Contact]) -> None:
        self._all = contacts
        self._known: dict[str, _Contact] | None = None

    def of(self, digits: str | None, user_id: str | None) -> _Contact | None:
        if not self._all:
            return None
        if self._known is None:
            self._known = {}
            for one in self._all:
                for key in (id_of(one.wa_id), id_of(one.user_id)):
                    if key is not None:
                        self._known.setdefault(key, one)
        found = self._known.get(digits or "") or self._known.get(user_id or "")
        return found or (self._all[0] if len(self._all) == 1 and not self._known else None)

    def user_id(self, digits: str | None) -> str | None:
        if not self._all:
            return None
        found = self.of(digits, None)
        return id_of(found.user_id) if found is not None else None


def _notes(errors: Iterable[object]) -> tuple[ErrorNote, ...]:
    notes = []
    for error in errors:
        if not isinstance(error, Mapping):
            continue
        code = number_of(error.get("code"))
        data = error.get("error_data")
        details = data.get("details") if isinstance(data, Mapping) else data
        title = words(error.get("title")) or words(error.get("message")) or ""
        notes.append(ErrorNote(code, title, words(details) or ""))
    return tuple(notes)


def _at(given: object, fallback: datetime | None) -> datetime:
    try:
        return time_of(given)
    except ValueError:
        if fallback is None:
            raise
        return fallback


def _lower(value: str | None) -> str | None:
    """Lower case, in one spelling: a library writes authentication_international, Meta's page a hyphen."""
    if value is None:
        return None
    value = value.lower()
    return "authentication-international" if value == "authentication_international" else value


def _read(raw: bytes | msgspec.Raw, shape: type[_Shape]) -> tuple[_Shape, set[str]]:
    """`raw` as `shape`, and the names of optional fields dropped because of an unexpected shape."""
    try:
        return _decoder(shape).decode(raw), set()
    except msgspec.ValidationError as error:
        value = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        fields = _fields(shape)
        if any(field.required and field.encode_name not in value for field, _ in fields):
            raise error
    dropped = set()
    kept: dict[str, Any] = {}
    for field, decoder in fields:
        if field.encode_name not in value:
            continue
        try:
            kept[field.name] = decoder.decode(value[field.encode_name])
        except UNREADABLE:
            if field.required:
                raise
            dropped.add(field.name)
    return shape(**kept), dropped


@cache
def _decoder(shape: type[_Shape]) -> msgspec.json.Decoder[_Shape]:
    return msgspec.json.Decoder(shape)


@cache
def _fields(shape: type[msgspec.Struct]) -> list[tuple[msgspec.structs.FieldInfo, msgspec.json.Decoder[Any]]]:
    """The fields of a shape, each with its decoder; finding them takes longer than reading a status."""
    return [(field, msgspec.json.Decoder(field.type)) for field in msgspec.structs.fields(shape)]


def _why(what: str, error: BaseException) -> str:
    """For operators: what was wrong with the shape. Messages from msgspec and our own contain no values."""
    known = isinstance(error, msgspec.MsgspecError) or type(error) is ValueError
    return f"{what}: {error if known else type(error).__name__}"[:200]


class _Envelope(msgspec.Struct):
    object: str = ""
    entry: list[msgspec.Raw] = []


class _Entry(msgspec.Struct):
    id: str | int | None = None
    time: str | int | float | None = None
    changes: list[msgspec.Raw] = []


class _Change(msgspec.Struct):
    value: msgspec.Raw
    field: str = ""


class _Metadata(msgspec.Struct):
    phone_number_id: str | int | None = None
    display_phone_number: Any = None


class _Contact(msgspec.Struct):
    wa_id: str | int | None = None
    user_id: str | int | None = None
    profile: Any = None


class _Value(msgspec.Struct):
    metadata: _Metadata | None = None
    contacts: list[_Contact] | None = None
    statuses: list[msgspec.Raw] | None = None
    messages: list[msgspec.Raw] | None = None
    errors: list[Any] | None = None


class _Pricing(msgspec.Struct):
    type: str | None = None
    category: str | None = None
    billable: bool | None = None
    pricing_model: str | None = None


class _Origin(msgspec.Struct):
    type: str | None = None


class _Conversation(msgspec.Struct):
    origin: _Origin | None = None


class _Status(msgspec.Struct):
    id: str
    status: str
    timestamp: str | int | float | None = None
    recipient_id: str | int | None = None
    recipient_user_id: str | int | None = None
    recipient_type: str | None = None
    biz_opaque_callback_data: str | None = None
    pricing: _Pricing | None = None
    conversation: _Conversation | None = None
    errors: list[Any] | None = None


class _Statuses(msgspec.Struct):
    metadata: _Metadata
    statuses: list[_Status]
    contacts: list[_Contact] | None = None
    messages: None = None
    errors: None = None


class _StatusesChange(msgspec.Struct):
    field: Literal["messages"]
    value: _Statuses


class _StatusesEntry(msgspec.Struct):
    changes: list[_StatusesChange]
    id: str | int | None = None
    time: str | int | float | None = None


class _OnlyStatuses(msgspec.Struct):
    object: Literal["whatsapp_business_account"]
    entry: list[_StatusesEntry]


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_ONLY_STATUSES = msgspec.json.Decoder(_OnlyStatuses)
