"""The Graph API's address and version, and which other addresses may replace it. Pure.

The rule nobody may break: a token leaves this machine only over https.
"""

from __future__ import annotations

import re
import urllib.parse
from ipaddress import ip_address

from heliograph.base.process.settings import SettingsError

BASE_URL = "https://graph.facebook.com"
API_VERSION = "v25.0"

_PLAIN = re.compile(r"[!-~]+")
_VERSION = re.compile(r"v[0-9]{1,3}\.[0-9]{1,3}", re.ASCII)


def check_base_url(base_url: str) -> str:
    """`base_url` without a trailing slash. Raises SettingsError unless it is https, or http to loopback."""
    try:
        parts = urllib.parse.urlsplit(base_url)
        host, port = parts.hostname or "", parts.port
        loopback = host == "localhost" or ((host[:1].isdigit() or ":" in host) and ip_address(host).is_loopback)
    except ValueError:
        raise SettingsError("the address of the Graph API cannot be read") from None
    # Python's parser removes line breaks from an address before parsing it; clients may not.
    whole = _PLAIN.fullmatch(base_url) is not None and "@" not in parts.netloc and "?" not in base_url
    if not whole or not host or port == 0 or "#" in base_url:
        raise SettingsError("the address of the Graph API must be https://host[:port][/path]")
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
        raise SettingsError("the address of the Graph API must begin with https://; http:// is only for this machine")
    return base_url.rstrip("/")


def is_version(text: str) -> bool:
    """Whether it looks like `v25.0`: it is put into addresses unchanged."""
    return _VERSION.fullmatch(text) is not None
