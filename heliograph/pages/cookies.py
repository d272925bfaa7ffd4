"""Cookies: the session's, and those that make the first paint correct without scripts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from heliograph.base import naming

#: Over https, this prefix makes browsers refuse a cookie set by another host or plain http (RFC 6265bis §4.1.3.2).
SECURE = "__Host-"
#: Notices as well, because their button, if any, acts in the reader's name.
NOTICE, SECURE_NOTICE = "hg-notice", "__Host-hg-notice"
#: In a notice's cookie, in place of the address to undo it: nothing was done.
REFUSED = "!"
#: Carries the token of an invitation from its page through the sign-in of the invited person; kept for these seconds.
INVITATION, INVITED = "hg-invitation", 3_600
#: The marks of a browser in which people have signed in before (`people.signing_in.mark`).
BROWSER = "hg-browser"
THEME, DENSITY, LANGUAGE, RAIL = "hg-theme", "hg-density", "hg-language", "hg-rail"
CHECKLIST, ROWS, KEYS = "hg-checklist", "hg-rows", "hg-keys"
THEMES, DENSITIES = ("system", "light", "dark"), ("comfortable", "compact")
YEAR = 31_536_000
#: Lifetime of "keep me signed in", in seconds.
MONTH = 2_592_000
_LONGEST = 8_192


def read(header: bytes) -> Mapping[str, str]:
    """The cookies of a request; of two with the same name, the first counts."""
    found: dict[str, str] = {}
    for part in header[:_LONGEST].decode("latin-1").split(";"):
        name, equals, value = part.strip().partition("=")
        if equals:
            found.setdefault(name, value)
    return found


def session(name: str, token: str, *, is_secure: bool, is_kept: bool = False) -> str:
    """The cookie of a session in the realm whose cookie has this name; without `is_kept`, it ends with the browser."""
    return _set(session_name(name, is_secure), token, is_secure=is_secure, age=MONTH if is_kept else None)


def no_session(name: str, *, is_secure: bool) -> str:
    """Deletes the session's cookie in the browser."""
    return _set(session_name(name, is_secure), "", is_secure=is_secure, age=0)


def session_name(name: str, is_secure: bool) -> str:
    """The name of a session's cookie, with or without https."""
    return SECURE + name if is_secure else name


def invitation(token: str, *, is_secure: bool) -> str:
    """The cookie of an opened invitation; "" deletes it."""
    return _set(session_name(INVITATION, is_secure), token, is_secure=is_secure, age=INVITED if token else 0)


def preference(name: str, value: str, *, is_secure: bool) -> str:
    """A cookie kept for a year; "" deletes it."""
    return _set(name, value, is_secure=is_secure, age=YEAR if value else 0)


def notice(text: str, undo: str = "", *, is_secure: bool) -> str:
    """What the next page says, and the address to undo it, or REFUSED; "" deletes the cookie."""
    value = base64.urlsafe_b64encode(f"{undo} {text}".encode()).decode().rstrip("=")
    return _set(notice_name(is_secure), value if text else "", is_secure=is_secure, age=60 if text else 0)


def notice_name(is_secure: bool) -> str:
    """The name of the notice's cookie, with or without https."""
    return SECURE_NOTICE if is_secure else NOTICE


def read_notice(value: str) -> tuple[str, str]:
    """(text, undo) from a cookie made by `notice`."""
    try:
        said = base64.urlsafe_b64decode(value[:2_000] + "=" * (-len(value[:2_000]) % 4)).decode()
    except (binascii.Error, ValueError):
        return "", ""
    undo, _, text = said.partition(" ")
    # Not `isprintable`: it refuses the space within a Portuguese number, and joiners, which names may have.
    return (text, undo) if naming.is_plain(said) else ("", "")


def _set(name: str, value: str, *, is_secure: bool, age: int | None) -> str:
    parts = [f"{name}={value}", "Path=/", "HttpOnly", "SameSite=Lax"]
    if is_secure:
        parts.append("Secure")
    if age is not None:
        parts.append(f"Max-Age={age}")
    return "; ".join(parts)
