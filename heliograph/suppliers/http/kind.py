"""What a supplier's module provides: how a message is sent, what the answer means, and how callbacks are read.

Everything here is a value: modules in `by_name/` have functions from one to another, know neither sockets nor SQL, and
are tested with the bytes that their suppliers document.
"""

from __future__ import annotations

import base64
import functools
import hmac
import json
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Annotated, Any

import msgspec

from heliograph.base.network.addresses import parse_networks
from heliograph.base.sentences import said
from heliograph.suppliers.contract import Inbound, Outcome, Receipt, ReceiptState, Submission
from heliograph.suppliers.http import multipart
from heliograph.suppliers.settings import (
    Country,
    HandlesStop,
    InboundPrepend,
    InboundStrip,
    RecipientErrors,
    demand,
    demand_address,
    demand_numbering,
)


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of every supplier over HTTP; each adds its own."""

    base_url: Annotated[str, "Where the supplier's API is: scheme, host and port"] = ""
    window: Annotated[int, "Maximum open requests per session"] = 20
    requests_per_second: Annotated[float, "Maximum messages per second and session; 0: as fast as answered"] = 0.0
    connect_seconds: Annotated[float, "Time limit for a connection; nothing has left then"] = 5.0
    response_seconds: Annotated[float, "Time limit for an answer; then the message's outcome is unknown"] = 30.0
    queue_seconds: Annotated[
        float, "Longest time a message waits for a free request, before it is returned to the queue"
    ] = 5.0
    callback_networks: Annotated[
        str, "Networks that receipts and messages may come from, comma-separated CIDRs; empty: any"
    ] = ""
    recipient_errors: RecipientErrors = ()
    handles_stop: HandlesStop = False
    country: Country = ""
    inbound_strip: InboundStrip = ""
    inbound_prepend: InboundPrepend = ""

    def __post_init__(self) -> None:
        for field in _required(type(self)):
            demand(getattr(self, field) != "", field, said("must not be empty"))
        demand(self.window >= 1, "window", said("must be 1 or more"))
        demand(self.requests_per_second >= 0, "requests_per_second", said("must not be negative"))
        for field in ("connect_seconds", "response_seconds", "queue_seconds"):
            demand(getattr(self, field) > 0, field, said("must be more than 0"))
        demand_numbering(self.country, self.inbound_prepend)
        if self.base_url:
            msgspec.structs.force_setattr(self, "base_url", demand_address(self.base_url))
        try:
            parse_networks(self.callback_networks)
        except ValueError:
            demand(False, "callback_networks", said("must be networks such as 192.0.2.0/24"))

    def takes_from(self, address: str) -> bool:
        """Whether callbacks may come from an address."""
        if not self.callback_networks:
            return True
        networks = parse_networks(self.callback_networks)
        try:
            parsed = ip_address(address)
        except ValueError:  # not an IP address
            return False
        # On a dual-stack socket an IPv4 address appears as ::ffff:192.0.2.1.
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in networks)


@functools.cache
def _required(settings: type[HttpSettings]) -> tuple[str, ...]:
    """The fields without a default."""
    return tuple(one.name for one in msgspec.structs.fields(settings) if one.required)


#: Maximum messages per request. Few suppliers document a limit; one reports on a hundred in a callback.
MOST = 100


class BatchSettings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of suppliers that take several messages per request."""

    batch: Annotated[int, "Messages per request; if its answer is lost, all of them are in doubt"] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(1 <= self.batch <= MOST, "batch", said("must be %(least)s to %(most)s", least=1, most=MOST))


class Message(msgspec.Struct, frozen=True):
    """One message as the supplier should send it."""

    #: E.164 digits without `+`, unless a number rule says otherwise.
    to: str
    #: A name, a short code, or a number with `+`.
    sender: str
    text: str
    #: "gsm7" or "ucs2".
    encoding: str
    #: Our reference, passed to suppliers that take one, and returned by them.
    reference: str
    #: Address for its receipts, containing the reference; empty: this installation has no public address.
    callback: str
    #: How long it is still worth delivering; None: the supplier's default.
    validity_seconds: int | None = None
    #: 0: normal; 1: urgent.
    priority: int = 0


class Request(msgspec.Struct, frozen=True):
    """A request to the supplier. `headers` contain neither Host nor Content-Length."""

    url: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    method: str = "POST"


class Answer(msgspec.Struct, frozen=True):
    """The supplier's answer."""

    status: int
    body: bytes
    #: Seconds requested by Retry-After.
    retry_after: float | None = None
    #: The headers that the kind reads, names in lower case.
    headers: Mapping[str, str] = {}
    #: The body may be only the beginning of what was meant: the connection was lost, or it is too long.
    is_cut: bool = False

    @property
    def json(self) -> Any:
        """The decoded body; None if it is not JSON."""
        return json_of(self.body)


class Callback(msgspec.Struct, frozen=True):
    """A request from a supplier to us."""

    method: str
    #: As given to the supplier: this installation's public address, path and query.
    url: str
    #: Names in lower case.
    headers: Mapping[str, str]
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        """Parameters of the URL."""
        return query_of(self.url)

    @property
    def form(self) -> dict[str, str]:
        """Fields of the body."""
        return form_of(self.body, self.headers.get("content-type", ""))

    @property
    def fields(self) -> dict[str, str]:
        """Fields of URL and body together, for suppliers that send either; of a JSON body, its top level."""
        said = self.json
        if isinstance(said, dict):
            return self.query | {name: text_of(value) for name, value in said.items()}
        return self.query | (self.form if self.method == "POST" else {})

    @property
    def json(self) -> Any:
        """The decoded body; None if it is not JSON."""
        return json_of(self.body)


class Reply(msgspec.Struct, frozen=True):
    """The answer that a supplier expects to its callbacks."""

    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"


#: An account's secrets by name; SECRET is always present.
Secrets = Mapping[str, str]
SECRET = "secret"  # noqa: S105 - its name


def secrets_of(text: str) -> Secrets:
    """Decode the secrets, which are sealed together."""
    return msgspec.json.decode(text, type=dict[str, str])


def _genuine(settings: HttpSettings, secrets: Secrets, callback: Callback) -> bool:
    """For suppliers that sign nothing: the secret part of the address is the only protection."""
    return True


def by_password(settings: Any, secrets: Secrets, callback: Callback) -> bool:
    """For suppliers whose callbacks may carry a user name and a password (RFC 7617). Their settings have a field
    `callback_user`, and their secrets a `callback_password`."""
    user = settings.callback_user
    return not user or is_same(
        callback.headers.get("authorization", ""), basic(user, secrets.get("callback_password", ""))
    )


def _nothing(settings: HttpSettings) -> Reply:
    """For suppliers that read only the status."""
    return Reply()


def _none(settings: HttpSettings) -> frozenset[str]:
    """For suppliers that use no headers except to sign."""
    return frozenset()


def _alike(submission: Submission) -> Any:
    """For suppliers whose requests may contain any messages."""
    return None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Several messages in one request, to different recipients. The functions take the supplier's settings first; those
    have a field `batch`, the maximum number."""

    #: (settings, secrets, messages). Raises ValueError if one of them cannot be written; then each is sent alone.
    request: Callable[[Any, Secrets, Sequence[Message]], Request]
    #: (settings, messages, answer) for any status: an outcome for each, in order. Messages that the answer does not
    #: name are unknown.
    answer: Callable[[Any, Sequence[Message], Answer], list[Outcome]]
    #: Messages share a request only if this is equal.
    alike: Callable[[Submission], Any] = _alike


def alone(several: Callable[[Any, Secrets, Sequence[Message]], Request]) -> Callable[[Any, Secrets, Message], Request]:
    """The request function for one message, built from that for several."""
    return lambda settings, secrets, message: several(settings, secrets, (message,))


class HttpKind(msgspec.Struct, frozen=True, kw_only=True):
    """A supplier. The functions take its settings first."""

    name: str
    title: str
    settings: type[HttpSettings]
    #: Name → meaning; SECRET first.
    secrets: Mapping[str, str] = msgspec.field(default_factory=lambda: {SECRET: "API key"})
    #: (settings, secrets, message). Raises ValueError, which says what part of the message cannot be written.
    request: Callable[[Any, Secrets, Message], Request]
    #: (settings, message, answer) for any status.
    answer: Callable[[Any, Message, Answer], Outcome]
    receipts: Callable[[Any, Callback], list[Receipt]]
    inbound: Callable[[Any, Callback], list[Inbound]]
    #: (settings, secrets, callback): whether the supplier signed it, as far as it signs.
    is_genuine: Callable[[Any, Secrets, Callback], bool] = _genuine
    reply: Callable[[Any], Reply] = _nothing
    #: Names, in lower case, of the headers that are read: of answers only these, of callbacks also those that usually
    #: carry signatures.
    headers: Callable[[Any], frozenset[str]] = _none
    batch: Batch | None = None
    #: Errors in receipts that lie with the recipient, in addition to those in an account's settings.
    recipient_errors: frozenset[str] = frozenset()

    def blamed(self, settings: HttpSettings, receipt: Receipt) -> Receipt:
        """The receipt, marked if its error lies with the recipient."""
        if not receipt.error or receipt.state in (ReceiptState.DELIVERED, ReceiptState.PENDING):
            return receipt
        if receipt.error not in self.recipient_errors and receipt.error not in settings.recipient_errors:
            return receipt
        return msgspec.structs.replace(receipt, recipients=True)


def text_of(value: Any) -> str:
    """A field as text: numbers as written, empty if absent."""
    return "" if value is None or isinstance(value, dict | list) else str(value)


def value_at(value: Any, *path: str | int) -> Any:
    """The value at a path in decoded JSON; None if the path ends early."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and len(value) > step else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def listed(value: Any, *path: str | int) -> list[Any]:
    """The list at a path in decoded JSON; empty if there is none."""
    found = value_at(value, *path)
    return found if isinstance(found, list) else []


def basic(name: str, password: str) -> str:
    """The value of Authorization for a name and password (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def is_same(given: str, wanted: str) -> bool:
    """Whether two secrets are equal, compared in constant time."""
    return hmac.compare_digest(given.encode(), wanted.encode())


FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


#: How input is read; the first that fits. What is not UTF-8 is ISO-8859-1, HTTP's former default, which old gateways
#: use, or Windows-1252, which they call so: it has characters where the other has control codes (€).
CHARSETS = ("utf-8", "cp1252", "latin-1")


def form(values: Mapping[str, str]) -> bytes:
    """A form's body; empty values are left out."""
    return urllib.parse.urlencode({name: value for name, value in values.items() if value != ""}).encode()


def pairs(text: str) -> dict[str, str]:
    """Fields of a form or a query; the last value of a repeated field."""
    for encoding in CHARSETS:
        try:
            return dict(
                urllib.parse.parse_qsl(
                    text, keep_blank_values=True, encoding=encoding, errors="strict", max_num_fields=200
                )
            )
        except UnicodeDecodeError:
            continue
        except ValueError:
            break
    return {}


#: Some gateways append their parameters to the address that they were given as if it had none.
_second_mark = re.compile(r"([?&]ref=[0-9a-f-]+)\?").sub


def query_of(url: str) -> dict[str, str]:
    """Parameters of an address."""
    return pairs(urllib.parse.urlsplit(_second_mark(r"\1&", url)).query)


def form_of(body: bytes, content_type: str) -> dict[str, str]:
    """Fields of a form's body."""
    parts = multipart.fields(body, content_type)
    return pairs(text_in(body)) if parts is None else {name: text_in(value) for name, value in parts.items()}


_without_marks = re.compile(rb"\A(?:\xef\xbb\xbf)+").sub


def text_in(body: bytes) -> str:
    """A body as text, whatever its charset, without byte order marks before it: a program in PHP writes one for each of
    its files that begins with one, even before text that is not UTF-8."""
    body = _without_marks(b"", body)
    for encoding in CHARSETS[:-1]:
        try:
            return body.decode(encoding)
        except UnicodeDecodeError:
            continue
    return body.decode(CHARSETS[-1])


def json_of(body: bytes) -> Any:
    """Decoded JSON; None if it is not JSON, or nested too deeply.

    Gateways put a byte order mark before it, ISO-8859-1 and line breaks as they are in it, a NUL after it, and half a
    surrogate pair where they cut a text into parts: rejecting any of these would lose a whole callback or answer.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        mended = _ESCAPE.sub(_mended, text_in(body).rstrip("\0"))
    try:
        return json.loads(mended, strict=False)
    except (ValueError, RecursionError):
        return None


#: An escape in JSON; a surrogate pair counts as one.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|u[dD][c-fC-F][0-9a-fA-F]{2}|.)"
)


def _mended(escape: re.Match[str]) -> str:
    # Six characters are half a pair, such as "\ud83d"; a whole pair has twelve.
    return "\\ufffd" if len(escape[0]) == 6 else escape[0]
