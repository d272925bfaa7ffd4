"""Where alphanumeric senders are carried: by operators' rules, or else according to published information.

Sources: AWS, Twilio, Infobip, Telerivet, SureSMS and CM.com for the countries that they serve; for countries they do
not mention, common practice. Where a country's networks differ, the strictest one counts.

The rule nobody may break: no judgement is made about a country of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args
from uuid import UUID

from heliograph.senders.book import Book

#: What happens to a name: shown as is; shown once registered; replaced by a number or another name; not sent.
Standing = Literal["free", "register", "replaced", "refused"]
#: Best first.
STANDINGS: tuple[Standing, ...] = get_args(Standing)
_BY_ACTION: dict[str, Standing] = {
    "allow": "free",
    "register": "register",
    "replace": "replaced",
    "refuse": "refused",
}
#: By ISO region, as in `phones.REGIONS`: US stands for all of +1.
PUBLISHED: dict[str, Standing] = {
    **dict.fromkeys(["AO", "DE", "FR", "GB", "MW", "PT"], "free"),
    **dict.fromkeys(["EG", "ES", "ET", "GH", "ID", "IN", "KE", "MA", "MZ", "NG", "TZ", "VN", "ZM", "ZW"], "register"),
    **dict.fromkeys(["AR", "BR", "CO", "MX", "PE", "US", "ZA"], "replaced"),
}


def standing(book: Book, country: str, *, suppliers: Collection[UUID], sender: str) -> Standing | None:
    """What happens to a name in a country, with the supplier that treats it best; None: not known."""
    published = PUBLISHED.get(country)
    found = set()
    for id in suppliers:
        rule = book.rule(id, country, sender)
        found.add(published if rule is None else _BY_ACTION[rule.action])
    if not found:
        return published
    return None if None in found else min(found, key=lambda one: STANDINGS.index(one))
