"""Any supplier with an HTTP API, by configuration alone: request templates, and places in answers and callbacks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from heliograph.base.sentences import said
from heliograph.suppliers.contract import NO_WORD, Inbound, Outcome, Receipt, ReceiptState
from heliograph.suppliers.http import references, templates
from heliograph.suppliers.http.kind import (
    JSON,
    SECRET,
    Answer,
    Batch,
    BatchSettings,
    Callback,
    HttpKind,
    Message,
    Reply,
    Request,
    Secrets,
    alone,
    basic,
    by_password,
    is_same,
)
from heliograph.suppliers.http.reading import inbound_of, number_of, part_of
from heliograph.suppliers.http.rulings import Ruling, by_status, outcome
from heliograph.suppliers.http.templates import Found
from heliograph.suppliers.settings import demand

#: Names that templates may use.
NAMES = frozenset(
    {
        *("to", "to_plus", "to_zeros", "from", "from_plus", "text", "reference", "callback", "secret", "coding"),
        "priority",
        *("validity_seconds", "validity_minutes", "validity_milliseconds"),
    }
)
Place = str
#: Headers that every request has anyway. A second one contradicts the first.
_OURS = frozenset({"host", "content-length", "transfer-encoding", "user-agent", "accept-encoding"})
_CHARSET = re.compile(r'charset\s*=\s*"?([^\s;"]*)', re.IGNORECASE)


class Settings(BatchSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at a supplier without a module of its own."""

    base_url: Annotated[str, "Where the API is: scheme, host and port"]
    method: Annotated[Literal["GET", "POST", "PUT"], "Method of the request that sends a message"] = "POST"
    path: Annotated[
        str,
        "Path and query of that request; may contain placeholders, as may body and headers: {{to}}, {{to_plus}}, "
        "{{to_zeros}}, {{from}}, {{from_plus}}, {{text}}, {{reference}}, {{callback}}, {{secret}}, {{coding}}, "
        "{{priority}}, {{validity_seconds}}, {{validity_minutes}}, {{validity_milliseconds}}",
    ] = "/"
    content_type: Annotated[str, "Media type of its body, which decides how values are escaped"] = JSON
    body: Annotated[
        str, 'Its body: {"to":"{{to_plus}}","text":"{{text}}"}; for a form: to={{to}}&text={{text}}; empty: none'
    ] = ""
    headers: Annotated[dict[str, str], "Header → value; may contain {{secret}}"] = msgspec.field(default_factory=dict)
    basic_user: Annotated[str, "User name of HTTP authentication, with the secret as password; empty: none"] = ""
    gsm7_coding: Annotated[str, "What {{coding}} is for a text in GSM-7"] = "0"
    ucs2_coding: Annotated[str, "What {{coding}} is for any other"] = "2"
    ucs2_text: Annotated[
        Literal["plain", "hex"], "How such a text is written: as it is, or as the hex digits of its UTF-16 octets"
    ] = "plain"
    max_characters: Annotated[int, "Longest text the supplier takes; 0: no limit"] = 0
    validity_seconds: Annotated[
        int, "Validity of messages that specify none; 0: {{validity_seconds}} and the like are empty for them"
    ] = 0
    item: Annotated[
        str, 'One message of the {{items}} in the body: {"to":"{{to_plus}}","text":"{{text}}"}; empty: there are none'
    ] = ""
    item_separator: Annotated[str, "What separates two of them"] = ","
    items_at: Annotated[Place, "Where its answer lists the result of each of them, in the same order"] = ""

    id_at: Annotated[Place, "Where its answer has the message's id; empty: it gives none, and receipts name ours"] = ""
    code_at: Annotated[Place, "Where its answer says how it went; empty: by the HTTP status"] = "status"
    detail_at: Annotated[Place, "Where its answer has words for operators"] = ""
    codes: Annotated[
        dict[str, Ruling],
        "Code → accepted, refused, elsewhere, blocked, opted_out, bad_sender, later, throttled, no_credit, config or "
        "unknown",
    ] = msgspec.field(default_factory=dict)

    receipt_list_at: Annotated[Place, "Where a callback lists receipts; empty: it is one itself"] = ""
    receipt_id_at: Annotated[Place, "Where a receipt has the message's id"] = "query:ref"
    receipt_state_at: Annotated[Place, "Where a receipt has the message's state"] = ""
    receipt_states: Annotated[
        dict[str, ReceiptState],
        "State there → delivered, undelivered, expired, rejected, failed, pending or unknown; case does not matter",
    ] = msgspec.field(default_factory=dict)
    receipt_error_at: Annotated[Place, "Where a receipt has the reason of a failure"] = ""
    receipt_recipient_at: Annotated[Place, "Where a receipt has the recipient"] = ""
    receipt_network_at: Annotated[Place, "Where a receipt has the recipient's network, MCC and MNC"] = ""

    inbound_list_at: Annotated[Place, "Where a callback lists messages from handsets; empty: it is one itself"] = ""
    inbound_from_at: Annotated[Place, "Where such a message has the handset's number"] = ""
    inbound_to_at: Annotated[Place, "Where it has the number that it was sent to"] = ""
    inbound_text_at: Annotated[Place, "Where it has its text"] = ""
    inbound_id_at: Annotated[Place, "Where it has its id, by which a repeat is recognized"] = ""
    inbound_reference_at: Annotated[
        Place, "Where a part of a long text has the number that its parts share; empty: texts arrive whole"
    ] = ""
    inbound_total_at: Annotated[Place, "Where it has the number of parts"] = ""
    inbound_part_at: Annotated[Place, "Where it has the position of the part, from 1"] = ""

    callback_user: Annotated[str, "User name that callbacks carry; empty: they carry none"] = ""
    token_header: Annotated[str, "Header in which callbacks carry a token; empty: they carry none"] = ""
    signature_header: Annotated[str, "Header with an HMAC of the body; empty: callbacks are not signed"] = ""
    signature_method: Annotated[Literal["sha1", "sha256", "sha512"], "Its algorithm"] = "sha256"
    signature_encoding: Annotated[Literal["hex", "base64"], "How it is written"] = "hex"
    reply: Annotated[str, "What callbacks are answered with"] = ""
    reply_type: Annotated[str, "Its media type"] = "text/plain; charset=utf-8"

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(self.path.startswith("/"), "path", said("must begin with /"))
        known = {"body": NAMES | {"items"} if self.item else NAMES}
        all_of = (("path", self.path), ("body", self.body), ("item", self.item), *self.headers.items())
        for field, template in all_of:
            unknown = sorted(templates.names_in(template) - known.get(field, NAMES))
            there = ", ".join(sorted(NAMES))
            demand(
                not unknown,
                field,
                said("uses %(names)s, but the placeholders are %(there)s", names=", ".join(unknown), there=there),
            )
        for field in self.__struct_fields__:
            if field.endswith("_at"):
                try:
                    templates.check_place(getattr(self, field))
                except ValueError as error:
                    raise ValueError(f"{field} {error}") from None
        elsewhere = {name for one in (self.path, *self.headers.values()) for name in templates.names_in(one)}
        elsewhere |= templates.names_in(self.body) - {"items"}
        if self.item:
            demand("items" in templates.names_in(self.body), "body", said("must contain {{items}} if there is an item"))
            demand(bool(self.items_at), "items_at", said("must not be empty if there is an item"))
            demand(
                elsewhere <= {"secret"},
                "item",
                said("must contain all placeholders of a message; other templates may only contain {{secret}}"),
            )
        demand(self.batch == 1 or bool(self.item), "batch", said("above 1 requires an item"))
        breaks = any("\n" in text or "\r" in text for pair in self.headers.items() for text in pair)
        demand(not breaks, "headers", said("must not contain line breaks"))
        written = {*_OURS, "content-type" if self.body else "", "authorization" if self.basic_user else ""}
        ours = [name for name in self.headers if name.lower() in written]
        names = ", ".join(ours)
        one = said("must not contain %(names)s, which is always sent", names=names)
        several = said("must not contain %(names)s, which are always sent", names=names)
        demand(not ours, "headers", one if len(ours) == 1 else several)
        charset = _CHARSET.search(self.content_type)
        is_utf8 = charset is None or charset[1].lower() in ("utf-8", "utf8")
        demand(is_utf8, "content_type", said("must not name a charset other than UTF-8, in which bodies are written"))
        part = (self.inbound_reference_at, self.inbound_total_at, self.inbound_part_at)
        together = said("requires inbound_total_at and inbound_part_at, and vice versa")
        demand(all(part) or not any(part), "inbound_reference_at", together)
        demand(self.validity_seconds >= 0, "validity_seconds", said("must not be negative"))
        is_alone = templates.split_around(self.body.strip(), "text") == ["", ""]
        used = templates.names_in(self.body) | templates.names_in(self.item)
        demand(
            is_alone or "text" not in used or templates.escapes(_media(self)),
            "content_type",
            said("must be JSON, XML or a form if the body is more than the text: nothing else is escaped"),
        )
        demand(_is_written(self), "body", said("is not JSON for the simplest message, one without a validity"))


#: The simplest message.
_LEAST = Message(to="258841234567", sender="ACME", text="x", encoding="gsm7", reference="r-1", callback="")


def _is_written(settings: Settings) -> bool:
    """Whether a body declared as JSON is valid JSON."""
    if not settings.body or not templates.is_json(_media(settings)):
        return True
    try:
        msgspec.json.decode(request_several(settings, {SECRET: "s"}, (_LEAST,)).body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _media(settings: Settings) -> str:
    return settings.content_type.partition(";")[0].strip().lower()


def request_several(settings: Settings, secrets: Secrets, messages: Sequence[Message]) -> Request:
    """Path, headers and body with their values filled in, and one item in the body per message."""
    each = [_values(settings, secrets, message) for message in messages]
    values = each[0]
    headers = {name: templates.fill_header(value, values) for name, value in settings.headers.items()}
    if settings.basic_user:
        headers["Authorization"] = basic(settings.basic_user, secrets[SECRET])
    if settings.body:
        headers["Content-Type"] = settings.content_type
    media = _media(settings)
    if settings.item:
        items = settings.item_separator.join(templates.fill(settings.item, one, media) for one in each)
        # Customers' texts are never searched for {{items}}.
        body = items.join(
            templates.fill(part, values, media) for part in templates.split_around(settings.body, "items")
        )
    else:
        body = templates.fill(settings.body, values, media)
    url = settings.base_url + templates.fill_url(settings.path, values)
    return Request(url, body.encode(), headers, settings.method)


def _values(settings: Settings, secrets: Secrets, message: Message) -> dict[str, str]:
    """The values that templates may use for a message. Raises ValueError if its text is too long."""
    if settings.max_characters and len(message.text) > settings.max_characters:
        raise ValueError(f"more than {settings.max_characters} characters")
    seconds = message.validity_seconds or settings.validity_seconds
    is_hex = settings.ucs2_text == "hex" and message.encoding != "gsm7"
    sender = message.sender
    return {
        "to": message.to,
        "to_plus": f"+{message.to}",
        "to_zeros": f"00{message.to}",
        "from": sender.removeprefix("+"),
        "from_plus": sender,
        "text": message.text.encode("utf-16-be").hex().upper() if is_hex else message.text,
        "reference": message.reference,
        "callback": message.callback,
        "secret": secrets[SECRET],
        "coding": settings.gsm7_coding if message.encoding == "gsm7" else settings.ucs2_coding,
        "priority": str(message.priority),
        "validity_seconds": str(seconds or ""),
        "validity_minutes": str(max(1, seconds // 60) if seconds else ""),
        "validity_milliseconds": str(seconds * 1000 or ""),
    }


def answer(settings: Settings, message: Message, answer: Answer) -> Outcome:
    """By the code, then by the status; a 2xx without the expected id is unknown."""
    return answer_several(settings, (message,), answer)[0]


def answer_several(settings: Settings, messages: Sequence[Message], answer: Answer) -> list[Outcome]:
    """The same for each item; if the answer has no item per message, it applies to all messages."""
    whole = Found(answer.body, answer.headers, status=answer.status, is_cut=answer.is_cut)
    if not settings.item:
        return [_meant(settings, whole, answer)] * len(messages)
    items = whole.items(settings.items_at)
    if len(items) == len(messages):
        return [_meant(settings, one, answer) for one in items]
    if 200 <= answer.status < 300:
        detail = said("%(items)s items in the answer to %(messages)s", items=len(items), messages=len(messages))
        return [outcome(Ruling.UNKNOWN, code=str(answer.status), detail=detail)] * len(messages)
    return [_meant(settings, whole, answer)] * len(messages)


def _meant(settings: Settings, found: Found, answer: Answer) -> Outcome:
    said_so = found.text(settings.code_at)
    code, id = said_so or str(answer.status), found.text(settings.id_at)
    detail = found.text(settings.detail_at)
    ruling = settings.codes.get(code)
    if ruling is None:
        is_by_status = settings.code_at in ("", "status")
        if not (200 <= answer.status < 300):
            return by_status(answer, detail=detail, code="" if is_by_status else said_so)
        ruling = Ruling.ACCEPTED if is_by_status else Ruling.UNKNOWN
        if not is_by_status:
            detail = detail or (said("`codes` does not have this code") if said_so else said("no code in the answer"))
    if ruling is Ruling.ACCEPTED and settings.code_at and not said_so:
        # A proxy's page has the same status, but says nothing about the message.
        return outcome(Ruling.UNKNOWN, code=code, detail=detail or said("no code in the answer"))
    if ruling is Ruling.ACCEPTED and settings.id_at and not id:
        return outcome(Ruling.UNKNOWN, code=code, detail=detail or said("no id in the answer"))
    return outcome(ruling, id=references.id_key(id), code=code, detail=detail, retry_after=answer.retry_after)


def receipts(settings: Settings, callback: Callback) -> list[Receipt]:
    """One receipt for each item that names an id."""
    known = {word.casefold(): state for word, state in settings.receipt_states.items()}
    receipts = []
    for one in _items(callback, settings.receipt_list_at):
        id, word = one.text(settings.receipt_id_at), one.text(settings.receipt_state_at)
        if not id:
            continue
        state = known.get(word.casefold() or NO_WORD)
        receipts.append(
            Receipt(
                keys=(references.id_key(id),),
                state=state or ReceiptState.UNKNOWN,
                recipient=number_of(one.text(settings.receipt_recipient_at)).lstrip("+ "),
                sender="",
                raw=one.body or callback.url.encode(),
                error=one.text(settings.receipt_error_at)[:64],
                unknown_word="" if state else word[:40] or NO_WORD,
                network=one.text(settings.receipt_network_at)[:16],
            )
        )
    return receipts


def inbound(settings: Settings, callback: Callback) -> list[Inbound]:
    """One message for each item that names a sender."""
    return [
        inbound_of(
            sender=sender,
            recipient=one.text(settings.inbound_to_at),
            text=one.text(settings.inbound_text_at),
            raw=one.body or callback.url.encode(),
            key=one.text(settings.inbound_id_at),
            concatenation=part_of(
                one.text(settings.inbound_reference_at),
                one.text(settings.inbound_total_at),
                one.text(settings.inbound_part_at),
            ),
        )
        for one in _items(callback, settings.inbound_list_at)
        if (sender := one.text(settings.inbound_from_at))
    ]


def is_genuine(settings: Settings, secrets: Secrets, callback: Callback) -> bool:
    """Checks password, token and signature, as far as they are configured."""
    if not by_password(settings, secrets, callback):
        return False
    if settings.token_header:
        token = secrets.get("callback_token", "")
        if not token or not is_same(callback.headers.get(settings.token_header.lower(), ""), token):
            return False
    if settings.signature_header:
        key = secrets.get("signature_secret", "")
        if not key:
            return False  # signed, but there is no key to verify it with
        digest = hmac.digest(key.encode(), callback.body, getattr(hashlib, settings.signature_method))
        wanted = digest.hex() if settings.signature_encoding == "hex" else base64.b64encode(digest).decode()
        given = callback.headers.get(settings.signature_header.lower(), "")
        # Some put the algorithm in front: sha256=5f3e…, or SHA256=5F3E…
        prefix = f"{settings.signature_method}="
        given = given[len(prefix) :] if given.lower().startswith(prefix) else given
        return is_same(given.lower() if settings.signature_encoding == "hex" else given, wanted)
    return True


def headers(settings: Settings) -> frozenset[str]:
    """The headers that a place or a check names."""
    places = (getattr(settings, field) for field in settings.__struct_fields__ if field.endswith("_at"))
    named = {place.removeprefix("header:") for place in places if place.startswith("header:")}
    return frozenset(name.lower() for name in (*named, settings.token_header, settings.signature_header) if name)


def _items(callback: Callback, place: Place) -> list[Found]:
    return Found(callback.body, callback.headers, callback.url).items(place)


def reply(settings: Settings) -> Reply:
    """The configured reply."""
    return Reply(settings.reply.encode(), settings.reply_type)


KIND = HttpKind(
    name="http",
    title="Any HTTP API",
    settings=Settings,
    secrets={
        SECRET: "Secret of the account, {{secret}} in templates",
        "callback_password": "Password that callbacks carry",
        "callback_token": "Token that callbacks carry",
        "signature_secret": "Key of the HMAC in callbacks",
    },
    request=alone(request_several),
    answer=answer,
    receipts=receipts,
    inbound=inbound,
    is_genuine=is_genuine,
    reply=reply,
    headers=headers,
    batch=Batch(request=request_several, answer=answer_several),
)
