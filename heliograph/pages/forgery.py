"""Protection against cross-site request forgery: `Origin` and `Sec-Fetch-Site` are checked, and each form contains a
token of the session.

The token is masked differently on each page, so that compression reveals nothing about it.
It names the organization that its page showed: whoever belongs to two, and has switched in another tab or signed in
again in the meantime, cannot change the one with a form of the other.
"""

from __future__ import annotations

import ipaddress
import os
import urllib.parse
from uuid import UUID

from heliograph.base.crypto import Key, is_mac, mac
from heliograph.base.errors import Refusal

#: The field in each form, and the header of requests made by scripts.
FIELD, HEADER = "_token", b"x-form-token"
#: Names the organization of the page that requests a part of itself again.
ORGANIZATION = b"x-organization"
_NONCE = 16
_NOWHERE = UUID(int=0)


class ForeignForm(Refusal):
    """This form did not come from one of our pages, or the page was opened before you signed in. Reload it."""

    code, status = "foreign_form", 403


class OtherOrganization(Refusal):
    """You have switched to another organization since this page was opened. Switch back, then try again."""

    code, status = "other_organization", 409


class PlainHttp(Refusal):
    """Signing in needs https here: over plain http, anybody on the path could read the password and the session."""

    code, status = "https_required", 403


def token(key: Key, session_id: UUID, organization_id: UUID | None) -> str:
    """A new token for the forms of a page of this organization; None: of none."""
    named = os.urandom(_NONCE) + (organization_id or _NOWHERE).bytes
    return (named + mac(key, named + session_id.bytes)).hex()


def check_token(key: Key, session_id: UUID, given: str) -> UUID | None:
    """The organization of a token. Raises ForeignForm unless `given` is one of this session."""
    try:
        raw = bytes.fromhex(given[:200])
    except ValueError:
        raise ForeignForm from None
    named, tag = raw[: _NONCE + 16], raw[_NONCE + 16 :]
    if not is_mac(key, named + session_id.bytes, tag):
        raise ForeignForm
    found = UUID(bytes=named[_NONCE:])
    return None if found == _NOWHERE else found


def check_origin(headers: dict[bytes, bytes], *, host: str, public_url: str, is_secure: bool) -> None:
    """Raises ForeignForm unless the browser says that a page of this very origin made the request; PlainHttp if that
    page was loaded over plain http although pages are served over https (`is_secure`): it could have been tampered with
    in transit, and browsers would not store our session cookie.

    Browsers send `Origin` with every POST, and most of them `Sec-Fetch-Site` (W3C Fetch Metadata); programs that send
    neither should use the API.
    """
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site not in (None, b"same-origin") or origin is None:
        raise ForeignForm
    scheme, _, given = origin.decode("latin-1").partition("://")
    known = {host} if host else set()
    if public_url:
        known.add(urllib.parse.urlsplit(public_url).netloc)
    if scheme not in ("http", "https") or given not in known:
        raise ForeignForm
    if is_secure and scheme != "https":
        raise PlainHttp


def is_loopback(host: str) -> bool:
    """True if a Host header names this machine from a local browser's point of view: `localhost` or a loopback address,
    since any other name may resolve to anything. False for an empty one."""
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:  # an unbalanced bracket, or a name
        return False
