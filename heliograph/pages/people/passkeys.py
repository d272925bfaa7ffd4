"""What pages need to ask for a passkey: where it is good, a challenge, and what the browser is told.

A form carries the challenge; `static/passkeys.js` puts into it what the browser says. Without scripts, or where
browsers keep no passkeys, a page offers none.
"""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.base.crypto import Key, derive_key
from heliograph.pages.requests import Request
from heliograph.people.passkeys import ceremony, challenges
from heliograph.people.passkeys.challenges import Site


def site_of(request: Request) -> Site | None:
    """Where passkeys of this address are good; None: browsers keep none for it."""
    public = request.services.settings.public_url
    scheme = "https" if request.is_secure else "http"
    return challenges.site(public.rstrip("/") if public else f"{scheme}://{request.host}")


def key(request: Request) -> Key:
    """What challenges are signed with."""
    return derive_key(request.services.settings.secret_keys, "passkey challenges")


def asking(request: Request) -> dict[str, Any]:
    """Values of a page that asks for a passkey; `passkey` is None where there can be none."""
    where = site_of(request)
    if where is None:
        return {"passkey": None}
    challenge = challenges.challenge(key(request))
    options = ceremony.sign_in_options(where, challenges.read_challenge(key(request), challenge))
    return {"passkey": {"challenge": challenge, "options": msgspec.json.decode(options)}}
