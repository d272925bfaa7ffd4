"""Where the Graph API is: its address and version, and which others may stand in for it. Pure.

The rule nobody may break: a token leaves this machine by https alone.
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
    """`base_url` without a slash at its end. Raises SettingsError: https, and http to loopback alone."""
    try:
        parts = urllib.parse.urlsplit(base_url)
        host, port = parts.hostname or "", parts.port
        loopback = host == "localhost" or ((host[:1].isdigit() or ":" in host) and ip_address(host).is_loopback)
    except ValueError:
        raise SettingsError("the address of the Graph API cannot be read") from None
    # Python's reader takes line breaks out of an address before it looks at it; whoever calls it may not.
    whole = _PLAIN.fullmatch(base_url) is not None and "@" not in parts.netloc and "?" not in base_url
    if not whole or not host or port == 0 or "#" in base_url:
        raise SettingsError("the address of the Graph API must be https://host[:port][/path]")
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
        raise SettingsError("the address of the Graph API must begin with https://; http:// is for this machine alone")
    return base_url.rstrip("/")


def is_version(text: str) -> bool:
    """Whether it looks like `v25.0`: it stands in addresses as it is."""
    return _VERSION.fullmatch(text) is not None
