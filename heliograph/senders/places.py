"""Where names are carried as senders: by an operator's rules, and where there is none, as networks publish it.

Sources of what is published: AWS, Twilio, Infobip, Telerivet, SureSMS and CM.com on the countries that they serve; of
countries that they say nothing of, what is usual. Where networks of a country differ, it is the strictest of them.

The rule nobody may break: a country of which nothing is known is not judged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args
from uuid import UUID

from heliograph.senders.book import Book

#: What becomes of a name: shown as it is; shown once it is registered; replaced by a number or another name; not sent.
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
    """What becomes of a name in a country, with whoever of these suppliers does most for it; None: nobody knows."""
    published = PUBLISHED.get(country)
    found = set()
    for id in suppliers:
        rule = book.rule(id, country, sender)
        found.add(published if rule is None else _BY_ACTION[rule.action])
    if not found:
        return published
    return None if None in found else min(found, key=lambda one: STANDINGS.index(one))
