"""Writes come from our own pages: `Origin` and `Sec-Fetch-Site` say so, and a token of the session stands in each form.

The token differs with each page though it says the same, so that nothing is learnt of it from how well a page packs.
"""

from __future__ import annotations

import ipaddress
import os
import urllib.parse
from uuid import UUID

from heliograph.base.crypto import Key, is_mac, mac
from heliograph.base.errors import Refusal

#: The field of each form, and the header of requests that scripts make.
FIELD, HEADER = "_token", b"x-form-token"
_NONCE = 16


class ForeignForm(Refusal):
    """This form did not come from one of our pages, or the page was opened before you signed in. Reload it."""

    code, status = "foreign_form", 403


class PlainHttp(Refusal):
    """Signing in needs https here: over plain http, anybody on the way could read the password and the session."""

    code, status = "https_required", 403


def token(key: Key, session_id: UUID) -> str:
    """A fresh token for the forms of a page."""
    nonce = os.urandom(_NONCE)
    return (nonce + mac(key, nonce + session_id.bytes)).hex()


def check_token(key: Key, session_id: UUID, given: str) -> None:
    """Raises ForeignForm unless `given` is a token of this session."""
    try:
        raw = bytes.fromhex(given[:200])
    except ValueError:
        raise ForeignForm from None
    nonce, tag = raw[:_NONCE], raw[_NONCE:]
    if not is_mac(key, nonce + session_id.bytes, tag):
        raise ForeignForm


def check_origin(headers: dict[bytes, bytes], *, host: str, public_url: str, is_secure: bool) -> None:
    """Raises ForeignForm unless the browser says that a page of this very address made the request; PlainHttp if that
    page came over plain http where pages come by https (`is_secure`): anybody on the way could have written it, and no
    browser keeps a session of ours that comes so.

    Browsers send `Origin` with every POST, and most of them `Sec-Fetch-Site` (W3C Fetch Metadata); a program that
    sends neither has the API.
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
    """Whether a Host header names this machine, as seen from the browser on it: `localhost` or an address written out,
    for any other name may lead anywhere. One that names nothing does not."""
    try:
        name = urllib.parse.urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:  # a bracket without its twin, or a name
        return False
