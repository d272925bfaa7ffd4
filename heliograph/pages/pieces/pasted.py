"""A text file submitted with a form, chosen or pasted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from heliograph.base import csv_files
from heliograph.base.errors import Invalid
from heliograph.pages.requests import Request

#: Maximum bytes of a file, and of the pieces in which it is read.
LONGEST, PIECE = 2_000_000, 65_536
#: The field of a form that shows what importing a file would do: a digest of that file and of the choices with it.
CHECKED = "checked"
#: Said of a form that asks for the import of something else than what was checked.
CHANGED = Invalid(("do", "differs", "It was changed after it was checked. See what it would do, then import it."))


def digest(text: str, *chosen: str) -> str:
    """Identifies a file, whatever ends its lines, and what was chosen with it."""
    return hashlib.sha256("\n".join((*chosen, *text.splitlines())).encode()).hexdigest()


def is_changed(form: Mapping[str, str], mark: str) -> bool:
    """Whether a form asks for the import of something else than what was checked; `mark`: the digest of what it has
    now."""
    return form.get("do") == "import" and form.get(CHECKED, mark) != mark


async def text(request: Request) -> str:
    """The whole file as text. Raises Invalid (file)."""
    raw = b""
    async for piece in request.upload.chunks(PIECE):
        raw += piece
        # A browser ends each line of a text field with both: a file that is shown in one does not outgrow its limit.
        if len(raw) - raw.count(b"\r\n") > LONGEST:
            raise Invalid(("file", "length", "The file must be at most 2 MB."))
    if not raw.strip():
        raise Invalid(("file", "required", "Choose a file that is not empty, or paste something."))
    try:
        return raw.decode(csv_files.marked_encoding(raw) or "utf-8")
    except UnicodeDecodeError:
        raise Invalid(("file", "encoding", "The file must be in UTF-8.")) from None
