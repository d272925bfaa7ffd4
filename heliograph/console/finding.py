"""The palette's search for something pasted: an id of any kind, a name, a number, an error code."""

from __future__ import annotations

from uuid import UUID

from heliograph.base import phones
from heliograph.base.ids import just_above
from heliograph.console import places
from heliograph.overview.searching import finding
from heliograph.pages.answers import Answer, Redirect
from heliograph.pages.pieces import places as pieces
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import LOOK, MONEY, OPERATORS, ORGANIZATIONS, TRAFFIC
from heliograph.why.words import entries

#: Pages of objects, and the permission to see them.
THINGS = {
    "organization": ("/console/organizations/{id}", ORGANIZATIONS),
    "supplier": ("/console/suppliers/{id}", TRAFFIC),
    "route": ("/console/routes/{id}", TRAFFIC),
    "operator": ("/console/operators/{id}", OPERATORS),
    "message": ("/console/messages/{id}", LOOK),
}
_ONE = "/console/organizations/{organization}"
#: The same for objects found only by id. Lists begin below the id in their address.
OWNED = {
    "sms_campaign": (f"{_ONE}/campaigns?after={{above}}", ORGANIZATIONS),
    "whatsapp_campaign": (f"{_ONE}/campaigns?channel=whatsapp&after={{above}}", ORGANIZATIONS),
    "key": (f"{_ONE}/keys/{{id}}", ORGANIZATIONS),
    "sender": (f"{_ONE}/keys", ORGANIZATIONS),
    "endpoint": (f"{_ONE}/webhooks", ORGANIZATIONS),
    "event": ("/console/messages/{id}", LOOK),
    "told": (f"{_ONE}/webhooks", ORGANIZATIONS),
    "account": ("/console/whatsapp/accounts/{organization}/{id}", TRAFFIC),
    "contact": (_ONE, ORGANIZATIONS),
    "import": (_ONE, ORGANIZATIONS),
    "received": ("/console/inbound?after={above}#latest", TRAFFIC),
    "person": (_ONE, ORGANIZATIONS),
    "lookup": ("/console/lookups/{id}", TRAFFIC),
    "tariff": ("/console/rates/cards/{id}", MONEY),
    "dead_letter": ("/console/whatsapp/callbacks/{id}", TRAFFIC),
}
#: Maximum characters of a search.
LONGEST = 200
#: Characters that people write between the digits of a number.
_SPACING = str.maketrans("", "", " \u00a0().-/")


async def go(request: Request) -> Answer:
    """Go to its page, or to a list searched for it. The text is typed in the form, or in a link's query."""
    text = (request.parameters.get("anything", "").strip() or request.query.get("q", "").strip())[:LONGEST]
    if not text:
        return Redirect(location=request.realm.home)
    kinds = [kind for kind, (_, permission) in THINGS.items() if request.may(permission=permission)]
    try:
        id = UUID(text)
    except ValueError:
        id = None
    async with request.reading() as conn:
        if id is not None:
            thing = await finding.by_id(conn, id=id, kinds=kinds)
        else:
            thing = await finding.by_name(conn, name=text, kinds=kinds)
    if thing is not None:
        return Redirect(location=THINGS[thing.kind][0].format(id=thing.id))
    if id is not None and (place := await _owned(request, id)) is not None:
        return Redirect(location=place)
    if id is not None and "message" in kinds:
        async with request.reading() as conn:
            if await finding.is_request(conn, request_id=text):
                return Redirect(location=request.to("/console/messages", request_id=text))
            # Some suppliers' ids are UUIDs, too.
            named = await finding.by_foreign_id(conn, id=text)
        return Redirect(location=THINGS["message"][0].format(id=named or id))
    if text in entries()["error"]:
        return Redirect(location=f"/docs/errors/{text}")
    if "organization" in kinds and text.startswith(("hg_live_", "hg_test_")):
        # A key as displayed, `hg_live_…a1B2`. Only the last four characters, even of a whole key, get into an address.
        return Redirect(location=request.to("/console/keys", search=text[-4:], revoked="yes"))
    if "message" in kinds and (phones.parse(text.translate(_SPACING)) or phones.read(text, region=None)):
        return Redirect(location=request.to("/console/messages", recipient=text))
    if "organization" in kinds:
        async with request.reading() as conn:
            if await finding.is_sender(conn, value=text):
                return Redirect(location=request.to("/console/senders", search=text))
    place = pieces.named(request, places.GROUPS, places.ACTIONS, text)
    return Redirect(location=place or request.to("/console/organizations", search=text))


async def _owned(request: Request, id: UUID) -> str | None:
    """The page of an organization's object."""
    kinds = [kind for kind, (_, permission) in OWNED.items() if request.may(permission=permission)]
    async with request.reading() as conn:
        thing = await finding.owned(conn, id=id, kinds=kinds)
    if thing is None:
        return None
    place = OWNED[thing.kind][0]
    return place.format(organization=thing.organization_id, id=thing.id, above=just_above(thing.id))
