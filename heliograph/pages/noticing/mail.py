"""A mail about notices: plain text, one line per event, with links to more."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence

from heliograph.base.network.smtp import Mail
from heliograph.notices.reading import Noticed
from heliograph.pages.languages import DEFAULT, ReaderLocale, locale
from heliograph.pages.noticing.lines import Line, lines
from heliograph.people.noticing.telling import MailRecipient


def compose(to: MailRecipient, notices: Sequence[Noticed], base_url: str) -> Mail:
    """A mail about notices. Those of a kind are grouped, in the order of their newest."""
    known = locale(to.language or DEFAULT, to.zone)
    kinds = list(dict.fromkeys((one.kind, one.mode) for one in notices))
    said = lines(known, sorted(notices, key=lambda one: kinds.index((one.kind, one.mode))))
    title = said[0].title if len(said) == 1 else known.count("%(num)s notice", "%(num)s notices", len(said))
    parts = [
        "\n".join(filter(None, (line.title + _in_test(known, line), line.more, base_url + _address(to, _path(line)))))
        for line in said
    ]
    choices = base_url + _address(to, "/notices/choices")
    parts.append(known.text("What is mailed to you is your choice:") + f"\n{choices}")
    return Mail(to.email, f"{to.organization}: {title}", "\n\n".join(parts) + "\n")


def _in_test(known: ReaderLocale, line: Line) -> str:
    return f" ({known.text('Test')})" if line.newest.mode == "test" else ""


def _path(line: Line) -> str:
    query = {"channel": line.channel, "mode": "test" if line.newest.mode == "test" else ""}
    wanted = urllib.parse.urlencode({name: value for name, value in query.items() if value})
    return line.path + (f"?{wanted}" if wanted else "")


def _address(to: MailRecipient, path: str) -> str:
    """A page of the organization, whichever the reader's session looks at; or the reader's own."""
    if to.organization_id is None or path == "/account":
        return path
    return f"/organizations/{to.organization_id}/look?{urllib.parse.urlencode({'next': path}, safe='/')}"
