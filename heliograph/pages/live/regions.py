"""A region as cached for all who see the same, and as delivered to each of them.

Forms need a token of the session and a unique mark, so the cached text has placeholders for both. The rule nobody may
break: everything that affects what a region shows is part of its key.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Hashable
from uuid import UUID

from heliograph.pages import cookies, requests
from heliograph.pages.answers import Region
from heliograph.pages.requests import Request
from heliograph.pages.routes import Route
from heliograph.people import roles
from heliograph.people.operators.sessions import Operator

#: Headers with the time when a region's rendering began, ms since 1970: of what `live.js` shows, and of the response.
#: Whatever renews itself sends the first: without a time, if what it shows is not shared (`panel.js`).
SEEN, MADE = b"x-seen", b"x-made"
#: Minimum size in bytes for a page to be compressed.
WORTH_PACKING = 1_024
#: Placeholders for the token and the mark of a form. Random, so that nobody can enter them into a field.
TOKEN, ONCE = f"token-{os.urandom(16).hex()}", f"once-{os.urandom(16).hex()}"


def shown_since(request: Request) -> int | None:
    """When the rendering of what the page shows began, if one of its regions asks; otherwise None."""
    given = request.headers.get(SEEN, b"")
    return int(given) if request.is_fragment and given.isdigit() and len(given) < 16 else None


def key(request: Request, route: Route, query: bytes) -> Hashable:
    """The cache key: everything that affects what a region shows."""
    person = request.session
    assert person is not None
    if isinstance(person, Operator):
        return (request.realm.name, person.id, request.path, query, *_shown(request, person.zone))
    who: Hashable = person.id
    # A role that may not see all texts and names still sees those of the person's own objects (`dashboard.visibility`).
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
    """How it is shown: language, time zone, number of rows, address."""
    rows = request.cookies.get(cookies.ROWS)
    return (request.locale.language, zone, rows, request.host, request.is_secure)


def region(text: str, *, made: int, of: UUID | None) -> Region:
    """A text rendered with TOKEN and ONCE, in the form in which it is cached. `of`: the only person whom it may be
    shown to."""
    body = text.encode()
    is_open = TOKEN in text or ONCE in text
    return Region(
        made=made,
        etag=etag(body, TOKEN, ONCE),
        body=body,
        is_open=is_open,
        packed=packed(body) if len(body) > WORTH_PACKING and not is_open else None,
        of=of,
    )


def filled(kept: Region, request: Request) -> bytes:
    """The region's body for one reader."""
    if not kept.is_open:
        return kept.body
    token = request.form_token()
    return kept.body.replace(TOKEN.encode(), token.encode()).replace(ONCE.encode(), requests.new_once().encode())


def etag(body: bytes, *fleeting: str) -> bytes:
    """Equal for equal content. `fleeting`: what differs each time, the token and mark of the forms."""
    for one in fleeting:
        body = body.replace(one.encode(), b"") if one else body
    return b'W/"%b"' % hashlib.sha256(body).hexdigest()[:24].encode()


def packed(body: bytes) -> bytes:
    """By gzip."""
    return gzip.compress(body, 4, mtime=0)
