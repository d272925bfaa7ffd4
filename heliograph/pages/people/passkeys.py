"""What pages need to ask for a passkey: its site, a challenge, and options for the browser.

A form carries the challenge; `static/passkeys.js` adds the browser's response. Without scripts, or where browsers do
not support passkeys, a page offers none.
"""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.base.crypto import Key, derive_key
from heliograph.pages.requests import Request
from heliograph.people.passkeys import ceremony, challenges
from heliograph.people.passkeys.challenges import Site


def site_of(request: Request) -> Site | None:
    """The site where passkeys of this address are valid; None: browsers do not support them there."""
    public = request.services.settings.public_url
    scheme = "https" if request.is_secure else "http"
    return challenges.site(public.rstrip("/") if public else f"{scheme}://{request.host}")


def key(request: Request) -> Key:
    """The key that signs challenges."""
    return derive_key(request.services.settings.secret_keys, "passkey challenges")


def asking(request: Request) -> dict[str, Any]:
    """Values for a page that asks for a passkey; `passkey` is None if passkeys are not possible."""
    where = site_of(request)
    if where is None:
        return {"passkey": None}
    challenge = challenges.challenge(key(request))
    options = ceremony.sign_in_options(where, challenges.read_challenge(key(request), challenge))
    return {"passkey": {"challenge": challenge, "options": msgspec.json.decode(options)}}
