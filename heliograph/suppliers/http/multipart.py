"""Forms as multipart/form-data (RFC 7578), which programs in PHP post unless told otherwise. Pure.

The rule nobody may break: reading takes linear time, whatever a body contains.
"""

from __future__ import annotations

import re

#: Maximum number of fields, and of bytes before the content of one.
MOST, HEAD = 200, 1_024

_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_NAME = re.compile(rb'[;\s]name=(?:"([^"]*)"|([^\s;"]+))', re.IGNORECASE)


def fields(body: bytes, content_type: str) -> dict[str, bytes] | None:
    """The fields of a form, the last value of a repeated one; none if there are more than MOST. None: it has another
    type."""
    if not content_type.lstrip().lower().startswith("multipart/form-data"):
        return None
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return {}
    # A delimiter begins a line, also in the first one.
    mark = b"\r\n--" + (boundary[1] or boundary[2]).encode("latin-1", "replace")
    _, *parts = (b"\r\n" + body).split(mark, MOST + 2)
    if len(parts) > MOST + 1:  # the last one is the end
        return {}
    found = {}
    for part in parts:
        if part.startswith(b"--"):
            break
        head, gap, content = part.partition(b"\r\n\r\n")
        name = _NAME.search(head[:HEAD])
        if gap and name is not None:
            found[(name[1] or name[2] or b"").decode("utf-8", "replace")] = content
    return found
