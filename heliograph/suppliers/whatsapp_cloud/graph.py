"""The Graph API over HTTP: sends, and reads of templates, numbers, accounts and tokens.

A token goes into a header and nowhere else, with its proof in the address; the one call for which Meta wants a token in
the address (`debug_token`) is never logged. No redirect is followed, no proxy or netrc is read from the environment, no
cookie is kept, no answer is decompressed or read beyond a limit, and no address in an answer is ever called.

The rule nobody may break: a send is written once, and whether it may have left is decided by whether any of it was
written to an open connection (`Failure.is_sent`), not by the kind of failure.
"""

from __future__ import annotations

import functools
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from uuid import UUID

import msgspec
import structlog

from heliograph.base.network.addresses import parse_networks
from heliograph.base.sentences import said
from heliograph.http.answers import READ_BYTES, Answer, Failure, Withheld
from heliograph.http.client import ClientRules, HttpClient
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud import objects
from heliograph.suppliers.whatsapp_cloud.address import API_VERSION, BASE_URL, check_base_url
from heliograph.suppliers.whatsapp_cloud.callbacks.content import part, text_id, words
from heliograph.suppliers.whatsapp_cloud.callbacks.management import id_of, number_of
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome
from heliograph.suppliers.whatsapp_cloud.credential import Credential
from heliograph.suppliers.whatsapp_cloud.errors import WRONG_PROOF, Fault, classify
from heliograph.suppliers.whatsapp_cloud.objects import CloudAccount, CloudNumber, CloudTemplate, TokenReport
from heliograph.suppliers.whatsapp_cloud.tolerant_json import UNREADABLE, decoded

#: Time limits in seconds: of a whole send, of connecting, of a whole read. Meta answers 99 of 100 sends within one.
SEND_SECONDS = 30.0
CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
#: Maximum bytes kept of an answer to a read. A truncated answer is not JSON, so it is never misread.
READ_ANSWER = 16 * 1_048_576
#: Items per page, and maximum pages per listing.
PAGE = 100
PAGES = 100
#: Share of the management calls above which they slow down, percent.
BUSY_PERCENT = 80

#: Response headers with the share of calls used up.
_APP_USAGE, _BUSINESS_USAGE = "x-app-usage", "x-business-use-case-usage"
#: Any address is allowed, since operators choose the name: a stand-in for Meta may be on this machine.
_ANYWHERE = parse_networks("0.0.0.0/0,::/0")
#: We close idle connections before Meta does: a send on one that is being closed ends as UNKNOWN.
_KEEP_ALIVE = 15.0
#: Usage is counted by the hour.
_USAGE_SECONDS = 3_600.0
#: Maximum pause that an answer may request, in seconds; after that, Meta is asked again.
ASKED_MOST = 3_600.0
_DETAIL = 300
#: The code of a send that was no longer wanted once its connection was open.
WITHHELD: Withheld = "withheld"

log = structlog.get_logger(__name__)


class CloudError(Exception):
    """A read without a result. `verdict` BUSY, UNREACHABLE and UNKNOWN are worth another try, REFUSED is not."""

    def __init__(self, verdict: Verdict, fault: Fault | None, code: str, detail: str = "") -> None:
        super().__init__(f"{code} {detail}".strip())
        self.verdict = verdict
        self.fault = fault
        self.code = code
        self.detail = detail


class CloudClient:
    """One host and version of the Graph API. Create, use and `close` it inside one running loop.

    Time limits are in seconds.
    """

    def __init__(
        self,
        base_url: str = BASE_URL,
        version: str = API_VERSION,
        *,
        send_seconds: float = SEND_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        keep_alive: float = _KEEP_ALIVE,
    ) -> None:
        self._root = f"{check_base_url(base_url)}/{version}/"
        # The connectors limit how many are open at once.
        rules = ClientRules(
            seconds=send_seconds,
            connect_seconds=min(connect_seconds, send_seconds),
            per_destination=1 << 30,
            allow_http=True,
            networks=_ANYWHERE,
            kept=READ_BYTES,
            decodes=True,
            headers=frozenset((_APP_USAGE.encode(), _BUSINESS_USAGE.encode())),
        )
        reads = msgspec.structs.replace(
            rules,
            seconds=read_seconds,
            connect_seconds=min(connect_seconds, read_seconds),
            kept=READ_ANSWER,
            body_seconds=read_seconds,
        )
        self._sends = HttpClient(rules, keep_alive=keep_alive)
        self._reads = HttpClient(reads, keep_alive=keep_alive)
        self._urls: dict[tuple[str, str], str] = {}
        self._heads: dict[str, tuple[dict[str, str], str]] = {}
        #: (token, business or app) → the pause that its answers advise, and until when.
        self._usage: dict[tuple[str, str], tuple[float, float]] = {}

    async def close(self) -> None:
        """Close all connections."""
        await self._sends.close()
        await self._reads.close()

    # -- sends ---------------------------------------------------------------------------------------------------------

    async def send(
        self, number_graph_id: str, credential: Credential, body: bytes, *, wanted: Callable[[], bool] = lambda: True
    ) -> CloudOutcome:
        """`POST /{number}/messages`, once; `wanted`: see HttpClient.post, UNREACHABLE with the code WITHHELD if not.
        Raises only on cancellation, after which the outcome is UNKNOWN."""
        headers, _ = self._head(credential.token)
        url = self._messages(number_graph_id, credential)
        return self._outcome(await self._sends.post(url, body, headers, wanted=wanted), credential)

    def send_now(
        self,
        number_graph_id: str,
        credential: Credential,
        body: bytes,
        message_id: UUID,
        done: Callable[[CloudOutcome], None],
    ) -> bool:
        """Like `send`, without a task, if an idle connection is open: `done` gets the outcome later. False: nothing was
        done; use `send`. `message_id` is for the log."""
        headers, lines = self._head(credential.token)
        url = self._messages(number_graph_id, credential)
        answered = functools.partial(self._answered, message_id, credential, done)
        return self._sends.post_now(url, body, lines, len(headers), answered)

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def templates(self, waba_id: str, credential: Credential) -> list[CloudTemplate]:
        """All templates of an account. Raises CloudError."""
        listed = await self._list(f"{waba_id}/message_templates", credential, objects.TEMPLATE_FIELDS)
        return [found for one in listed if (found := objects.template(one)) is not None]

    async def template(self, template_id: str, credential: Credential) -> CloudTemplate:
        """One template. Raises CloudError."""
        found = objects.template(await self._get(template_id, credential, {"fields": objects.TEMPLATE_FIELDS}))
        return found if found is not None else _unreadable("template")

    async def phone_numbers(self, waba_id: str, credential: Credential) -> list[CloudNumber]:
        """All numbers of an account. Raises CloudError."""
        listed = await self._list(f"{waba_id}/phone_numbers", credential, objects.NUMBER_FIELDS)
        return [found for one in listed if (found := objects.number(one)) is not None]

    async def phone_number(self, number_graph_id: str, credential: Credential) -> CloudNumber:
        """One number. Raises CloudError."""
        found = objects.number(await self._get(number_graph_id, credential, {"fields": objects.NUMBER_FIELDS}))
        return found if found is not None else _unreadable("number")

    async def account(self, waba_id: str, credential: Credential) -> CloudAccount:
        """An account. Raises CloudError."""
        found = objects.account(await self._get(waba_id, credential, {"fields": objects.ACCOUNT_FIELDS}))
        return found if found is not None else _unreadable("account")

    async def debug_token(self, token: str, *, by: Credential) -> TokenReport:
        """Meta's report about `token`, requested by the app itself. Raises CloudError (also for the app's
        credential)."""
        answer = await self._get("debug_token", by, {"input_token": token}, kept=False)
        return objects.token_report(answer)

    async def subscribed_apps(self, waba_id: str, credential: Credential) -> frozenset[str]:
        """Ids of the apps that receive the account's webhooks. Raises CloudError."""
        return objects.subscribed(await self._get(f"{waba_id}/subscribed_apps", credential, {}))

    async def subscribe(self, waba_id: str, credential: Credential) -> None:
        """Subscribe the token's app to the account's webhooks; idempotent. Raises CloudError."""
        answer = await self._call("POST", f"{waba_id}/subscribed_apps", credential, {})
        if answer.get("success") is not True:
            _unreadable("subscribed_apps")

    def pause(self, token: str, at: float | None = None) -> float:
        """Seconds that reads with this token should wait, by what Meta has answered it about calls used up; 0:
        continue."""
        now = time.monotonic() if at is None else at
        self._usage = {key: entry for key, entry in self._usage.items() if entry[1] > now}
        mine = [min(until - now, seconds) for (of, _), (seconds, until) in self._usage.items() if of == token]
        return max(mine, default=0.0)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _answered(
        self, message_id: UUID, credential: Credential, done: Callable[[CloudOutcome], None], found: Answer | Failure
    ) -> None:
        try:
            outcome = self._outcome(found, credential)
        except Exception as error:  # the message may be on its way
            log.exception("answer to a send not understood", message_id=str(message_id), error=type(error).__name__)
            outcome = CloudOutcome(Verdict.UNKNOWN, fault=classify(None), code=type(error).__name__)
        done(outcome)

    def _outcome(self, found: Answer | Failure, credential: Credential) -> CloudOutcome:
        if isinstance(found, Answer):
            self._note_usage(found.headers, credential)
            return outcome_of(found.status, found.body, found.retry_after)
        if not found.is_sent:
            return CloudOutcome(Verdict.UNREACHABLE, code=found.kind, detail=said("nothing was sent"))
        return CloudOutcome(Verdict.UNKNOWN, fault=classify(None), code=found.kind, detail=said("no answer"))

    def _messages(self, number_graph_id: str, credential: Credential) -> str:
        key = (number_graph_id, credential.proof)
        url = self._urls.get(key)
        if url is None:
            if len(self._urls) > 1_000:
                self._urls.clear()
            url = self._address(f"{number_graph_id}/messages", {"appsecret_proof": credential.proof})
            self._urls[key] = url
        return url

    def _address(self, path: str, query: Mapping[str, str]) -> str:
        return f"{self._root}{urllib.parse.quote(path)}?{urllib.parse.urlencode(query, safe=',')}"

    def _head(self, token: str) -> tuple[dict[str, str], str]:
        """Headers of a call with a token, also as lines."""
        head = self._heads.get(token)
        if head is None:
            # Few are in use at once; those of former tokens are dropped.
            if len(self._heads) > 1_000:
                self._heads.clear()
            headers = _headers(token)
            head = self._heads[token] = headers, "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return head

    async def _list(self, path: str, credential: Credential, fields: str) -> list[Mapping[str, Any]]:
        items: list[Mapping[str, Any]] = []
        query = {"fields": fields, "limit": str(PAGE)}
        for _ in range(PAGES):
            answer = await self._get(path, credential, query)
            data = answer.get("data")
            if not isinstance(data, list):
                _unreadable(path.rpartition("/")[2])
            items += [one for one in data if isinstance(one, Mapping)]
            paging = part(answer, "paging")
            after = words(part(paging, "cursors").get("after"))
            # `next` means that there is more. Its address is not called: it may lead anywhere, with a token in it.
            if not paging.get("next") or not after or after == query.get("after"):
                return items
            query["after"] = after
        raise CloudError(Verdict.UNKNOWN, None, "listing", f"more than {PAGES} pages")

    async def _get(
        self, path: str, credential: Credential, query: Mapping[str, str], *, kept: bool = True
    ) -> dict[str, Any]:
        return await self._call("GET", path, credential, query, kept=kept)

    async def _call(
        self, method: str, path: str, credential: Credential, query: Mapping[str, str], *, kept: bool = True
    ) -> dict[str, Any]:
        headers = self._head(credential.token)[0] if kept else _headers(credential.token)
        address = self._address(path, {**query, "appsecret_proof": credential.proof})
        found = await self._reads.request(method, address, b"", headers)
        if isinstance(found, Failure):
            raise CloudError(Verdict.UNREACHABLE, None, found.kind, found.detail)
        self._note_usage(found.headers, credential)
        answer = _object(found.body)
        if 200 <= found.status < 300 and answer is not None and "error" not in answer:
            return answer
        refused = outcome_of(found.status, found.body, found.retry_after)
        raise CloudError(refused.verdict, refused.fault, refused.code, refused.detail)

    def _note_usage(self, headers: Mapping[str, str], credential: Credential) -> None:
        if headers:
            now = time.monotonic()
            for key, seconds in usage_pauses(headers).items():
                until = now + max(seconds, _USAGE_SECONDS if seconds else 0.0)
                self._usage[credential.token, key] = (seconds, until)


def outcome_of(status: int, raw: bytes, retry_after: float | None = None) -> CloudOutcome:
    """The outcome for any answer to a send. `retry_after`: seconds, at most ASKED_MOST of which count."""
    retry_after = None if retry_after is None else min(retry_after, ASKED_MOST)
    answer = _object(raw)
    if answer is not None and 200 <= status < 300 and "error" not in answer:
        messages, contacts = answer.get("messages"), answer.get("contacts")
        message = messages[0] if isinstance(messages, list) and messages else None
        contact = contacts[0] if isinstance(contacts, list) and contacts else None
        wamid = text_id(part({"m": message}, "m").get("id"))
        if wamid:
            known = part({"c": contact}, "c")
            state = words(part({"m": message}, "m").get("message_status"))
            return CloudOutcome(
                Verdict.ACCEPTED,
                wamid=wamid,
                wa_id=id_of(known.get("wa_id")),
                user_id=id_of(known.get("user_id")),
                message_status=state,
                # Meta holds it, and may report nothing on it for an hour or for good.
                detail=state[:_DETAIL] if state and state != "accepted" else "",
            )
    error = part(answer, "error")
    code = number_of(error.get("code"))
    subcode = number_of(error.get("error_subcode"))
    message = words(error.get("message")) or ""
    if code == 100 and "appsecret_proof" in message:
        fault = WRONG_PROOF
    else:
        fault = classify(code, subcode, http_status=status, is_transient=error.get("is_transient") is True)
    no = Verdict.BUSY if fault.waits else Verdict.REFUSED
    verdict = Verdict.UNKNOWN if fault.unsure else no
    data = error.get("error_data")
    details = data.get("details") if isinstance(data, Mapping) else data
    name = f"http {status}" if code is None else f"{code}/{subcode}" if subcode is not None else str(code)
    return CloudOutcome(
        verdict,
        fault=fault,
        code=name,
        detail=(words(details) or message or fault.title)[:_DETAIL],
        retry_after=None if retry_after is None or verdict is not Verdict.BUSY else min(retry_after, _USAGE_SECONDS),
        trace=(words(error.get("fbtrace_id")) or "")[:100],
    )


def usage_pauses(headers: Mapping[str, str]) -> dict[str, float]:
    """The pauses that the usage headers (names in lower case) advise: key (business or app) → seconds between reads; 0:
    none.

    Above BUSY_PERCENT the pause grows by 3 s per percent, to a minute at 100; `estimated_time_to_regain_access`
    (minutes) is used if it is longer.
    """
    pauses: dict[str, float] = {}
    app = _object(headers.get(_APP_USAGE, "").encode())
    if app is not None:
        pauses["app"] = _pause(app)
    for key, uses in (_object(headers.get(_BUSINESS_USAGE, "").encode()) or {}).items():
        listed = [one for one in uses if isinstance(one, Mapping)] if isinstance(uses, list) else []
        pauses[key] = max(map(_pause, listed), default=0.0)
    return pauses


def _headers(token: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
    }


def _unreadable(what: str) -> NoReturn:
    raise CloudError(Verdict.UNKNOWN, None, "answer", f"{what}: not as expected")


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        value = decoded(raw, msgspec.json.decode)
    except UNREADABLE:
        return None
    return value if isinstance(value, dict) else None


def _pause(use: Mapping[str, Any]) -> float:
    percent = max((value for name in _PERCENTS if isinstance(value := use.get(name), int | float)), default=0)
    minutes = use.get("estimated_time_to_regain_access")
    regain = float(minutes) * 60 if isinstance(minutes, int | float) and minutes > 0 else 0.0
    return max(regain, (percent - BUSY_PERCENT) * 3.0 if percent > BUSY_PERCENT else 0.0)


_PERCENTS = ("call_count", "total_cputime", "total_time")
