"""Static files, our own and vendored ones, under an address that contains the digest of all of them, so they can be
cached forever and can refer to each other.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from heliograph.http.static import Headers, StaticPage

FOLDER = Path(__file__).with_name("static")
PREFIX = "/assets/"
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Assets:
    """Everything below PREFIX."""

    def __init__(self, headers: Headers) -> None:
        files = {
            str(path.relative_to(FOLDER)): path.read_bytes()
            for path in sorted(FOLDER.rglob("*"))
            if path.suffix in _TYPES
        }
        whole = hashlib.sha256(b"".join(name.encode() + body for name, body in files.items()))
        self.base = f"{PREFIX}{whole.hexdigest()[:16]}/"
        self.pages = {
            self.base + name: StaticPage(
                body, _TYPES[Path(name).suffix], "public, max-age=31536000, immutable", headers
            )
            for name, body in files.items()
        }

    def address(self, name: str) -> str:
        """The address of a file; a missing one is an error in the template."""
        address = self.base + name
        if address not in self.pages:
            raise LookupError(name)
        return address
