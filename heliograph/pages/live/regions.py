"""A region as it is kept for all who see the same, and as each of them gets it.

Forms need a token of the session and a mark of their own, so what is kept has placeholders for both. The rule nobody
may break: whatever decides what a region shows is part of its key.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Hashable

from heliograph.pages import cookies, forgery, requests
from heliograph.pages.answers import Region
from heliograph.pages.requests import Request
from heliograph.pages.routes import Route
from heliograph.people import roles
from heliograph.people.operators.sessions import Operator

#: The header with which `live.js` asks: when that was begun which it shows, ms since 1970; and that of the answer.
SEEN, MADE = b"x-seen", b"x-made"
#: From which size on a page is packed.
WORTH_PACKING = 1_024
#: What stands for the token and the mark of a form. Nobody can write them into a field.
TOKEN, ONCE = f"token-{os.urandom(16).hex()}", f"once-{os.urandom(16).hex()}"


def seen(request: Request) -> int | None:
    """When that was begun which the page shows, if it is a region of it that asks."""
    given = request.headers.get(SEEN, b"")
    return int(given) if request.is_fragment and given.isdigit() and len(given) < 16 else None


def key(request: Request, route: Route, query: bytes) -> Hashable:
    """What decides what a region shows."""
    person = request.session
    assert person is not None
    if isinstance(person, Operator):
        return (request.realm.name, person.id, request.path, query, *_shown(request, person.zone))
    who: Hashable = person.id
    # A role that does not see everybody's texts and names sees those of what is its person's own (`dashboard.seeing`).
    if route.is_alike and request.may(permission=roles.CONTENT) and request.may(permission=roles.TEAM):
        who = (person.role, person.reveals, person.has_totp, request.cookies.get(cookies.CHECKLIST))
    return (
        person.organization_id,
        person.state,
        person.columns,
        who,
        request.path,
        query,
        *_shown(request, person.zone),
    )


def _shown(request: Request, zone: str | None) -> tuple[Hashable, ...]:
    """How it is shown: in which language and zone, how many rows, under which address."""
    rows = request.cookies.get(cookies.ROWS)
    return (request.speech.language, zone, rows, request.host, request.is_secure)


def region(text: str, *, made: int) -> Region:
    """What was made with TOKEN and ONCE, as it is kept."""
    body = text.encode()
    is_open = TOKEN in text or ONCE in text
    return Region(
        made=made,
        etag=etag(body, TOKEN, ONCE),
        body=body,
        is_open=is_open,
        packed=packed(body) if len(body) > WORTH_PACKING and not is_open else None,
    )


def filled(kept: Region, request: Request) -> bytes:
    """What one reader gets."""
    if not kept.is_open:
        return kept.body
    assert request.session is not None
    token = forgery.token(request.services.form_key, request.session.id)
    return kept.body.replace(TOKEN.encode(), token.encode()).replace(ONCE.encode(), requests.new_once().encode())


def etag(body: bytes, *fleeting: str) -> bytes:
    """The same for what says the same. `fleeting`: what differs with each showing, the token and mark of its forms."""
    for one in fleeting:
        body = body.replace(one.encode(), b"") if one else body
    return b'W/"%b"' % hashlib.sha256(body).hexdigest()[:24].encode()


def packed(body: bytes) -> bytes:
    """By gzip."""
    return gzip.compress(body, 4, mtime=0)
