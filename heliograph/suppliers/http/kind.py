"""What a supplier's file says: how a message is asked to be sent, what the answer means, and what comes back later.

Everything here is values: a file of `by_name/` has functions from one to the other, knows neither sockets nor SQL, and
is tested by giving it the bytes that its supplier documents.
"""

from __future__ import annotations

import base64
import functools
import hmac
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Annotated, Any

import msgspec

from heliograph.base.network.addresses import parse_networks
from heliograph.base.sentences import said
from heliograph.suppliers.contract import Inbound, Outcome, Receipt, ReceiptState, Submission
from heliograph.suppliers.settings import (
    Country,
    HandlesStop,
    InboundPrepend,
    InboundStrip,
    RecipientErrors,
    demand,
    demand_numbering,
)

#: Type of number of what is written with a calling code.
INTERNATIONAL = 1


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every supplier over HTTP has; each adds its own."""

    base_url: Annotated[str, "Where the supplier's API is: scheme, host and port"] = ""
    window: Annotated[int, "Maximum open requests per session"] = 20
    requests_per_second: Annotated[float, "Maximum messages per second and session; 0: as fast as answered"] = 0.0
    connect_seconds: Annotated[float, "Time limit for a connection; nothing has left then"] = 5.0
    response_seconds: Annotated[float, "Time limit for an answer; then the message's outcome is unknown"] = 30.0
    queue_seconds: Annotated[
        float, "Longest time a message waits for a request of its own, before it is returned to the queue"
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
        url = urllib.parse.urlsplit(self.base_url)
        is_url = url.scheme in ("https", "http") and bool(url.hostname) and not url.query and not url.fragment
        demand(not self.base_url or is_url, "base_url", said("must be a URL such as https://api.example.net"))
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
        except ValueError:  # not one that anybody could list
            return False
        # On a socket for both, an IPv4 address comes as ::ffff:192.0.2.1.
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in networks)


@functools.cache
def _required(settings: type[HttpSettings]) -> tuple[str, ...]:
    """The fields that have no default."""
    return tuple(one.name for one in msgspec.structs.fields(settings) if one.required)


#: Messages of a request. Few suppliers document a limit; one reports on a hundred in a callback.
MOST = 100


class BatchSettings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of suppliers that take several messages in a request."""

    batch: Annotated[int, "Messages per request; if its answer is lost, all of them are in doubt"] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(1 <= self.batch <= MOST, "batch", said("must be %(least)s to %(most)s", least=1, most=MOST))


class Message(msgspec.Struct, frozen=True):
    """One message as a supplier is to send it."""

    #: E.164 digits without `+`, unless a number rule has it otherwise.
    to: str
    #: A name, a short code, or a number with `+`.
    sender: str
    text: str
    #: "gsm7" or "ucs2".
    encoding: str
    #: Ours, told to the supplier where it takes one, and back by it.
    reference: str
    #: Where its receipts are to be told, with the reference in it; empty: this installation has no public address.
    callback: str
    #: That it is still worth delivering; None: the supplier's default.
    validity_seconds: int | None = None
    #: 0: as usual; 1: it is in a hurry.
    priority: int = 0


class Request(msgspec.Struct, frozen=True):
    """What is asked. `headers` hold neither Host nor Content-Length."""

    url: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    method: str = "POST"


class Answer(msgspec.Struct, frozen=True):
    """What was answered."""

    status: int
    body: bytes
    #: Seconds that Retry-After asks for.
    retry_after: float | None = None
    #: Those that the kind reads, names in small letters.
    headers: Mapping[str, str] = {}

    @property
    def json(self) -> Any:
        """The body; None if it is no JSON."""
        return json_of(self.body)


class Callback(msgspec.Struct, frozen=True):
    """A request that a supplier makes of us."""

    method: str
    #: As the supplier was told it: with the public address of this installation, path and query.
    url: str
    #: Names in small letters.
    headers: Mapping[str, str]
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        """Parameters of the URL."""
        return pairs(urllib.parse.urlsplit(self.url).query)

    @property
    def form(self) -> dict[str, str]:
        """Fields of the body."""
        return pairs(text_in(self.body))

    @property
    def fields(self) -> dict[str, str]:
        """Of URL and body together, for those who send either; of a body in JSON what stands at its top."""
        said = self.json
        if isinstance(said, dict):
            return self.query | {name: text_of(value) for name, value in said.items()}
        return self.query | (self.form if self.method == "POST" else {})

    @property
    def json(self) -> Any:
        """The body; None if it is no JSON."""
        return json_of(self.body)


class Reply(msgspec.Struct, frozen=True):
    """What a supplier wants to read as the answer to its callbacks."""

    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"


#: Of an account, by name; SECRET is always there.
Secrets = Mapping[str, str]
SECRET = "secret"  # noqa: S105 - its name


def secrets_of(text: str) -> Secrets:
    """Secrets as they are sealed together."""
    return msgspec.json.decode(text, type=dict[str, str])


def _genuine(settings: HttpSettings, secrets: Secrets, callback: Callback) -> bool:
    """For suppliers that sign nothing: the secret part of the address is all that there is."""
    return True


def by_password(settings: Any, secrets: Secrets, callback: Callback) -> bool:
    """For suppliers whose callbacks may carry a user name and a password (RFC 7617). The settings have a field
    `callback_user`, and a secret is `callback_password`."""
    user = settings.callback_user
    return not user or is_same(
        callback.headers.get("authorization", ""), basic(user, secrets.get("callback_password", ""))
    )


def _nothing(settings: HttpSettings) -> Reply:
    """For suppliers that read the status alone."""
    return Reply()


def _none(settings: HttpSettings) -> frozenset[str]:
    """For suppliers that say nothing in headers, but what they sign with."""
    return frozenset()


def _alike(submission: Submission) -> Any:
    """For suppliers whose requests may hold any messages."""
    return None


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Several messages in one request, to recipients that differ. The functions take the supplier's settings first,
    which have a field `batch`: how many."""

    #: (settings, secrets, messages). Raises ValueError if one of them cannot be written; then each is sent alone.
    request: Callable[[Any, Secrets, Sequence[Message]], Request]
    #: (settings, messages, answer) for any status: an outcome for each, in their order. What the answer does not name
    #: is unknown.
    answer: Callable[[Any, Sequence[Message], Answer], list[Outcome]]
    #: Messages go together only if this is equal.
    alike: Callable[[Submission], Any] = _alike


def alone(several: Callable[[Any, Secrets, Sequence[Message]], Request]) -> Callable[[Any, Secrets, Message], Request]:
    """The request for one message, where it is that for several."""
    return lambda settings, secrets, message: several(settings, secrets, (message,))


class HttpKind(msgspec.Struct, frozen=True, kw_only=True):
    """A supplier. The functions take its settings first."""

    name: str
    title: str
    settings: type[HttpSettings]
    #: Name → meaning; SECRET first.
    secrets: Mapping[str, str] = msgspec.field(default_factory=lambda: {SECRET: "API key"})
    #: (settings, secrets, message). Raises ValueError, which says what of the message cannot be written.
    request: Callable[[Any, Secrets, Message], Request]
    #: (settings, message, answer) for any status.
    answer: Callable[[Any, Message, Answer], Outcome]
    receipts: Callable[[Any, Callback], list[Receipt]]
    inbound: Callable[[Any, Callback], list[Inbound]]
    #: (settings, secrets, callback): signed by the supplier, as far as it signs.
    is_genuine: Callable[[Any, Secrets, Callback], bool] = _genuine
    reply: Callable[[Any], Reply] = _nothing
    #: Names, in small letters, of headers that are read: of answers these alone, of callbacks also those that usually
    #: sign.
    headers: Callable[[Any], frozenset[str]] = _none
    batch: Batch | None = None
    #: Errors of receipts that are the recipient's own affair, beside those that an account's settings name.
    recipient_errors: frozenset[str] = frozenset()

    def blamed(self, settings: HttpSettings, receipt: Receipt) -> Receipt:
        """A receipt with whose affair its error is."""
        if not receipt.error or receipt.state in (ReceiptState.DELIVERED, ReceiptState.PENDING):
            return receipt
        if receipt.error not in self.recipient_errors and receipt.error not in settings.recipient_errors:
            return receipt
        return msgspec.structs.replace(receipt, recipients=True)


def inbound_of(
    *,
    sender: str,
    recipient: str,
    text: str,
    raw: bytes,
    key: str = "",
    concatenation: tuple[int, int, int] | None = None,
) -> Inbound:
    """A message from a handset, or a part of one. `key`: the supplier's id of it, by which it is known when it comes
    again. `concatenation`: (reference, total, number) of a part."""
    return Inbound(
        sender=sender.removeprefix("+"),
        recipient=recipient.removeprefix("+"),
        text=text,
        raw=raw,
        concatenation=concatenation,
        sender_ton=INTERNATIONAL if sender.startswith("+") else 0,
        key=key,
    )


def text_of(value: Any) -> str:
    """A field as text: numbers as they are written, nothing for what is absent."""
    return "" if value is None or isinstance(value, dict | list) else str(value)


def at(value: Any, *path: str | int) -> Any:
    """What stands at a path of decoded JSON; None where it ends early."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and len(value) > step else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def listed(value: Any, *path: str | int) -> list[Any]:
    """What stands at a path of decoded JSON, if it is a list; else nothing."""
    found = at(value, *path)
    return found if isinstance(found, list) else []


def basic(name: str, password: str) -> str:
    """The value of Authorization (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def is_same(given: str, wanted: str) -> bool:
    """Whether two secrets are equal, in the same time wherever they differ."""
    return hmac.compare_digest(given.encode(), wanted.encode())


FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


def form(values: Mapping[str, str]) -> bytes:
    """A form's body; empty values are left out."""
    return urllib.parse.urlencode({name: value for name, value in values.items() if value != ""}).encode()


def pairs(text: str) -> dict[str, str]:
    """Fields of a form or a query; of one that comes twice the last."""
    for encoding in ("utf-8", "latin-1"):
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


def text_in(body: bytes) -> str:
    """What came as text. What is no UTF-8 is read as ISO-8859-1, as HTTP did before it, and as old gateways do."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.decode("latin-1")


def json_of(body: bytes) -> Any:
    """Decoded JSON; None for what is none, or deeper than anybody writes it.

    Gateways write a byte order mark before it, ISO-8859-1 in it, and halves of a character where they cut a text into
    parts: each of them would cost a whole callback, or an answer.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        mended = _ESCAPE.sub(_mended, text_in(body).removeprefix("\ufeff"))
    try:
        return msgspec.json.decode(mended)
    except (msgspec.DecodeError, RecursionError):
        return None


#: An escape in JSON, a pair of surrogates as one.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|u[dD][c-fC-F][0-9a-fA-F]{2}|.)"
)


def _mended(escape: re.Match[str]) -> str:
    # "\ud83d" has six characters.
    return "\\ufffd" if len(escape[0]) == 6 else escape[0]
