"""The Graph API over HTTP: sends, and reads of templates, numbers, accounts and tokens.

A token goes into a header and nowhere else, with its proof in the address; the one call that Meta wants a token in the
address of (`debug_token`) is never logged. No redirect is followed, no proxy or netrc of the environment is read, no
cookie is kept, no answer is decompressed or read beyond a limit, and no address that an answer names is ever called.

The rule nobody may break: a send is written once. aiohttp repeats only reads by itself, and whether a send may have
left is told by whether its body was handed to an open connection, not by the kind of the exception.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud import objects
from heliograph.suppliers.whatsapp_cloud.address import API_VERSION, BASE_URL, check_base_url
from heliograph.suppliers.whatsapp_cloud.callbacks.content import part, words
from heliograph.suppliers.whatsapp_cloud.callbacks.management import id_of, number_of
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome
from heliograph.suppliers.whatsapp_cloud.credential import Credential
from heliograph.suppliers.whatsapp_cloud.errors import WRONG_PROOF, Fault, classify
from heliograph.suppliers.whatsapp_cloud.objects import CloudAccount, CloudNumber, CloudTemplate, TokenReport

#: A send in all, connecting within it, and a read in all; seconds. Meta answers 99 of 100 sends within one.
SEND_SECONDS = 30.0
CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
#: Answers beyond this are not read; bytes.
SEND_ANSWER = 65_536
READ_ANSWER = 16 * 1_048_576
#: Items a page, and pages of one listing.
PAGE = 100
PAGES = 100
#: Share of the management calls from which on they slow down, percent.
BUSY_PERCENT = 80

#: An idle connection is closed by us before Meta does: a send on one that is being closed ends as UNKNOWN.
_KEEP_ALIVE = 15.0
#: Usage is counted by the hour.
_USAGE_SECONDS = 3_600.0
_DETAIL = 300


class CloudError(Exception):
    """A read that gave nothing. `verdict` BUSY, UNREACHABLE and UNKNOWN are worth another try, REFUSED is not."""

    def __init__(self, verdict: Verdict, fault: Fault | None, code: str, detail: str = "") -> None:
        super().__init__(f"{code} {detail}".strip())
        self.verdict = verdict
        self.fault = fault
        self.code = code
        self.detail = detail


class CloudClient:
    """One host and version of the Graph API. Made and used inside one running loop; `close` it.

    Bounds are seconds.
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
        self._send_bounds = aiohttp.ClientTimeout(total=send_seconds, sock_connect=connect_seconds)
        self._read_bounds = aiohttp.ClientTimeout(total=read_seconds, sock_connect=connect_seconds)
        # How many are open at once is the connectors' business.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=keep_alive, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "heliograph"},
        )
        self._urls: dict[tuple[str, str], URL] = {}
        self._heads: dict[str, dict[str, str]] = {}
        self._usage: dict[str, tuple[float, float]] = {}

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    # -- sends ---------------------------------------------------------------------------------------------------------

    async def send(self, number_graph_id: str, credential: Credential, body: bytes) -> CloudOutcome:
        """`POST /{number}/messages`, once. Never raises but for cancellation, after which the outcome is UNKNOWN."""
        payload = _Body(body)
        try:
            async with self._session.post(
                self._messages(number_graph_id, credential),
                data=payload,
                headers=self._head(credential.token),
                timeout=self._send_bounds,
                allow_redirects=False,
            ) as response:
                status, headers = response.status, response.headers
                raw = await _read(response, SEND_ANSWER)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            if not payload.begun:
                return CloudOutcome(Verdict.UNREACHABLE, code=_name(error), detail="nothing was sent")
            return CloudOutcome(Verdict.UNKNOWN, fault=classify(None), code=_name(error), detail="no answer")
        self._note_usage(headers)
        return outcome_of(status, headers, raw)

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
        """What Meta says of `token`, asked by the app itself. Raises CloudError (of the app's credential, too)."""
        answer = await self._get("debug_token", by, {"input_token": token}, kept=False)
        return objects.token_report(answer)

    async def subscribed_apps(self, waba_id: str, credential: Credential) -> frozenset[str]:
        """Ids of the apps that get the account's webhooks. Raises CloudError."""
        return objects.subscribed(await self._get(f"{waba_id}/subscribed_apps", credential, {}))

    async def subscribe(self, waba_id: str, credential: Credential) -> None:
        """Have the token's app get the account's webhooks; again is fine. Raises CloudError."""
        answer = await self._call("POST", f"{waba_id}/subscribed_apps", credential, {})
        if answer.get("success") is not True:
            _unreadable("subscribed_apps")

    def pause(self, at: float | None = None) -> float:
        """Seconds that reads had better wait, by what Meta said of the calls used up; 0: go on."""
        now = time.monotonic() if at is None else at
        self._usage = {key: entry for key, entry in self._usage.items() if entry[1] > now}
        return max((min(until - now, seconds) for seconds, until in self._usage.values()), default=0.0)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _messages(self, number_graph_id: str, credential: Credential) -> URL:
        key = (number_graph_id, credential.proof)
        url = self._urls.get(key)
        if url is None:
            if len(self._urls) > 10_000:
                self._urls.clear()
            url = URL(f"{self._root}{number_graph_id}/messages").with_query(appsecret_proof=credential.proof)
            self._urls[key] = url
        return url

    def _head(self, token: str) -> dict[str, str]:
        head = self._heads.get(token)
        if head is None:
            # Few live at once; those of former tokens go.
            if len(self._heads) > 1_000:
                self._heads.clear()
            head = self._heads[token] = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
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
            # `next` says that there is more. The address in it is not called: it may lead anywhere, with a token in it.
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
        head = self._head(credential.token) if kept else {"Authorization": f"Bearer {credential.token}"}
        try:
            async with self._session.request(
                method,
                URL(self._root + path),
                params={**query, "appsecret_proof": credential.proof},
                headers=head,
                timeout=self._read_bounds,
                allow_redirects=False,
            ) as response:
                status, headers = response.status, response.headers
                raw = await _read(response, READ_ANSWER)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            # The exception itself may hold the address, and with it a token.
            raise CloudError(Verdict.UNREACHABLE, None, _name(error)) from None
        self._note_usage(headers)
        answer = _object(raw)
        if 200 <= status < 300 and answer is not None and "error" not in answer:
            return answer
        refused = outcome_of(status, headers, raw)
        raise CloudError(refused.verdict, refused.fault, refused.code, refused.detail)

    def _note_usage(self, headers: Mapping[str, str]) -> None:
        if "X-Business-Use-Case-Usage" in headers or "X-App-Usage" in headers:
            now = time.monotonic()
            for key, seconds in usage_pauses(headers).items():
                self._usage[key] = (seconds, now + max(seconds, _USAGE_SECONDS if seconds else 0.0))


def outcome_of(status: int, headers: Mapping[str, str], raw: bytes) -> CloudOutcome:
    """What an answer to a send means, whatever it is."""
    answer = _object(raw)
    if answer is not None and 200 <= status < 300 and "error" not in answer:
        messages, contacts = answer.get("messages"), answer.get("contacts")
        message = messages[0] if isinstance(messages, list) and messages else None
        contact = contacts[0] if isinstance(contacts, list) and contacts else None
        wamid = words(part({"m": message}, "m").get("id"))
        if wamid:
            known = part({"c": contact}, "c")
            return CloudOutcome(
                Verdict.ACCEPTED,
                wamid=wamid,
                wa_id=id_of(known.get("wa_id")),
                user_id=id_of(known.get("user_id")),
                message_status=words(part({"m": message}, "m").get("message_status")),
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
        retry_after=_seconds(headers.get("Retry-After")) if verdict is Verdict.BUSY else None,
        trace=(words(error.get("fbtrace_id")) or "")[:100],
    )


def usage_pauses(headers: Mapping[str, str]) -> dict[str, float]:
    """What the usage headers advise: key (business or app) → seconds between reads; 0: nothing to be done.

    Above BUSY_PERCENT the pause grows by 3 s a percent, a minute at 100; `estimated_time_to_regain_access` (minutes)
    says more where it is given.
    """
    pauses: dict[str, float] = {}
    app = _object(headers.get("X-App-Usage", "").encode())
    if app is not None:
        pauses["app"] = _pause(app)
    for key, uses in (_object(headers.get("X-Business-Use-Case-Usage", "").encode()) or {}).items():
        listed = [one for one in uses if isinstance(one, Mapping)] if isinstance(uses, list) else []
        pauses[key] = max(map(_pause, listed), default=0.0)
    return pauses


class _Body(aiohttp.BytesPayload):
    """A body that knows whether it was handed to a connection that was open."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body, content_type="application/json")
        self.begun = False

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        # aiohttp keeps the headers back until here. On a connection that has closed it raises before it writes.
        transport = getattr(writer, "transport", None)
        self.begun = transport is None or not transport.is_closing()
        await super().write_with_length(writer, content_length)


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole answer. Raises ValueError when it is longer than `limit`."""
    length = response.content_length
    if length is not None and length <= limit:
        return await response.read()
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > limit:
            response.close()
            raise ValueError("the answer is too long")
        chunks.append(chunk)
    return b"".join(chunks)


def _unreadable(what: str) -> NoReturn:
    raise CloudError(Verdict.UNKNOWN, None, "answer", f"{what}: not as expected")


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _seconds(value: str | None) -> float | None:
    return min(float(value), _USAGE_SECONDS) if value is not None and value.isascii() and value.isdigit() else None


def _pause(use: Mapping[str, Any]) -> float:
    percent = max((value for name in _PERCENTS if isinstance(value := use.get(name), int | float)), default=0)
    minutes = use.get("estimated_time_to_regain_access")
    regain = float(minutes) * 60 if isinstance(minutes, int | float) and minutes > 0 else 0.0
    return max(regain, (percent - BUSY_PERCENT) * 3.0 if percent > BUSY_PERCENT else 0.0)


def _name(error: BaseException) -> str:
    """The kind of an exception, with the system's name for it: its text may hold addresses."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return "timeout" if isinstance(error, TimeoutError | asyncio.TimeoutError) else type(cause).__name__


_PERCENTS = ("call_count", "total_cputime", "total_time")
