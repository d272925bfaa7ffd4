"""`heliograph call`: calls any operation of the API with a key, by path or name."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote
from uuid import uuid4

import msgspec
import typer

from heliograph.api.routes import OPERATIONS, PREFIX
from heliograph.base.network.failures import reason
from heliograph.cli.developer.client import (
    Client,
    KeyOption,
    ProfileOption,
    UpDir,
    UrlOption,
    checked_idempotency_key,
    client,
)
from heliograph.cli.terminal.console import WRONG, Problem
from heliograph.cli.terminal.files import BYTE_ORDER_MARK
from heliograph.cli.terminal.http import Transient
from heliograph.cli.terminal.printing import JsonOnly, line, show

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_WITHOUT_BODY = ("GET", "DELETE")
#: Fields of a page of a list: its items, where the next page begins, and whether there is one.
_ITEMS, _NEXT, _MORE = "items", "nextCursor", "hasMore"


def _names(incomplete: str) -> list[str]:
    return sorted(one.id for one in OPERATIONS if one.id.startswith(incomplete))


def command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="OPERATION|PATH",
            help="Name of an operation, as in the API reference, or a path below /v1.",
            autocompletion=_names,
        ),
    ],
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            show_default=False,
            help=(
                "A field of the path, the query or the body. NAME:=VALUE gives JSON: a number, true, a list, an object."
            ),
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", "-X", metavar="METHOD", show_default="the operation's, or GET", help="HTTP method."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            metavar="JSON|@FILE",
            show_default=False,
            help="The whole body as JSON; @FILE reads it from a file, @- from stdin.",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            show_default="a new one for a POST",
            help="Idempotency key, to repeat a request that may already have been accepted.",
            callback=checked_idempotency_key,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All pages of a list, one item per line.")] = False,
    key: KeyOption = None,
    url: UrlOption = None,
    profile: ProfileOption = None,
    json: JsonOnly = False,
    data_dir: UpDir = None,
) -> None:
    """Call any operation of the API with a key, and print its response as JSON.

    Uses the profile stored by `heliograph login`. A refusal is printed, and the exit status is 1.

    \b
    Examples:
      heliograph call getAccountSummary
      heliograph call createCampaign name=Opening message_template="Hello" audience_tags:='["porto"]'
      heliograph call pauseCampaign campaignId=019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
      heliograph call /contacts tag=vip --all
      heliograph call /webhooks -X POST -d @endpoint.json
    """
    api = client(key, url, profile, data_dir)
    given = _once(_field(one) for one in fields or ())
    asked, path, rest, has_body = _operation(what, given) if not what.startswith("/") else _path(what, given, method)
    if method is not None:
        asked = method.upper()
    if asked not in _METHODS:
        raise Problem(f"--method must be one of {', '.join(_METHODS)}", WRONG)
    if asked == "GET" and idempotency_key is not None:
        raise Problem("--idempotency-key is for requests that change something", WRONG)
    body = rest if has_body else None
    query = {} if has_body else {name: _plain(value) for name, value in rest.items()}
    if data is not None:
        # In the query the API would ignore them: a campaign would start at once, without its `scheduled_at`.
        if has_body and rest:
            raise Problem(f"--data is the whole body: move {', '.join(rest)} into it", WRONG)
        body, query = _body(data), {name: _plain(value) for name, value in rest.items()}
        # The API would ignore it: a contact to create would be answered with the list of contacts.
        if not has_body and not what.startswith("/"):
            raise Problem(f"{what} takes no body", WRONG)
        if asked in _WITHOUT_BODY:
            raise Problem(f"a {asked} takes no body: with --data, give --method POST, PUT or PATCH", WRONG)
    if every:
        _all(api, asked, path, query)
        return
    if asked == "POST" and idempotency_key is None:
        idempotency_key = str(uuid4())
    try:
        done = api.ask(asked, path, query=query, body=body, idempotency_key=idempotency_key)
    except Transient as lost:
        if idempotency_key is None:
            raise
        again = f"to repeat it, in case it was accepted: --idempotency-key {idempotency_key}"
        raise Transient(f"{lost}; {again}", lost.exit_status) from None
    show(done, True, ())


def _all(api: Client, method: str, path: str, query: dict[str, Any]) -> None:
    if method != "GET":
        raise Problem("--all is for lists", WRONG)
    page = api.ask("GET", path, query=query)
    while True:
        if not isinstance(page, dict) or not isinstance(page.get(_ITEMS), list):
            raise Problem("--all is for lists: this answer has no items", WRONG)
        for one in page[_ITEMS]:
            line(one, True, ())
        if not page.get(_MORE) or not page.get(_NEXT):
            return
        query["cursor"] = page[_NEXT]
        # A long list exceeds a key's reads per minute, and what is printed cannot be continued.
        page = api.keep_asking(path, query=query, has=())


def _operation(name: str, given: dict[str, Any]) -> tuple[str, str, dict[str, Any], bool]:
    """Method and path of an operation, the fields that are not in its path, and whether they form a body."""
    known = {one.id: one for one in OPERATIONS}
    if name not in known:
        close = get_close_matches(name, known, n=3, cutoff=0.5)
        said = f"; did you mean {' or '.join(close)}?" if close else "; the API reference lists them"
        raise Problem(f"there is no operation {name!r}{said}", WRONG)
    found, rest = known[name], dict(given)

    def filled(match: re.Match[str]) -> str:
        if match[1] not in rest:
            raise Problem(f"{name} needs {match[1]}=…", WRONG)
        return quote(_plain(rest.pop(match[1])), safe="")

    path = re.sub(r"\{(\w+)\}", filled, found.path)
    if found.request is None:
        _check_query(name, rest, () if found.query is None else found.query.__struct_encode_fields__)
    return found.method, path, rest, found.request is not None


def _check_query(operation: str, given: dict[str, Any], known: Sequence[str]) -> None:
    """Refuse parameters that the operation does not have. The API ignores them, so a misspelled filter would list
    everything."""
    folded = {_folded(one): one for one in known}
    for name in given:
        if _folded(name) not in folded:
            close = get_close_matches(_folded(name), folded, n=1)
            said = f"; did you mean {folded[close[0]]}?" if close else ""
            raise Problem(f"{operation} has no parameter {name!r}{said}", WRONG)


def _folded(name: str) -> str:
    """A name in the one spelling that the API compares: it takes camelCase and snake_case."""
    return name.replace("_", "").lower()


def _path(text: str, given: dict[str, Any], method: str | None) -> tuple[str, str, dict[str, Any], bool]:
    # Split by hand, because two slashes at the beginning do not introduce a host here.
    path, _, query = (text.removeprefix(PREFIX) if text.startswith(f"{PREFIX}/") else text).partition("?")
    asked = (method or "GET").upper()
    if asked in _WITHOUT_BODY:
        return asked, path, _once([*parse_qsl(query, keep_blank_values=True), *given.items()]), False
    return asked, path + (f"?{query}" if query else ""), given, bool(given)


def _once(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Fields by name. Refuses one that is given twice: only the last would count."""
    found: dict[str, Any] = {}
    for name, value in fields:
        if name in found:
            raise Problem(f"{name} is given twice", WRONG)
        found[name] = value
    return found


def _field(text: str) -> tuple[str, Any]:
    match = re.match(r"([A-Za-z_]\w*)(:?)=(.*)", text, re.DOTALL)
    if match is None:
        raise Problem(f"{text!r} is not NAME=VALUE or NAME:=JSON", WRONG)
    if not match[2]:
        return match[1], match[3]
    try:
        return match[1], msgspec.json.decode(match[3])
    except msgspec.DecodeError as error:
        raise Problem(f"{match[1]}: {error}", WRONG) from None


def _body(text: str) -> Any:
    try:
        if text.startswith("@"):
            # JSON is UTF-8 in every locale.
            text = (sys.stdin.buffer.read() if text == "@-" else Path(text[1:]).read_bytes()).decode()
        return msgspec.json.decode(text.removeprefix(BYTE_ORDER_MARK))
    except OSError as error:
        raise Problem(f"--data: {text[1:]} cannot be read: {reason(error)}", WRONG) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Problem(f"--data is not JSON: {reason(error)}", WRONG) from None


def _plain(value: Any) -> str:
    """A field as written in a path or query."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
