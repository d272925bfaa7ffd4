"""D8a Webhooks: the endpoints and their state; creating one, with code that verifies what it receives."""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, refused
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.webhooks import catcher, endpoints, figures, verification
from heliograph.webhooks.endpoints import MAX_ACTIVE, Endpoint, EndpointRules, TooManyEndpoints
from heliograph.webhooks.figures import Health, Hour
from heliograph.webhooks.recording.events import KINDS
from heliograph.webhooks.samples import SUMMARIES, samples
from heliograph.why.words import why

#: Events preselected for a new endpoint: the contract's two.
USUAL = ("message.delivered", "message.failed")


class Cell(msgspec.Struct, frozen=True):
    """An hour of the strip. `tone`: "good", "some", "bad" or "idle"; `label` says it in words."""

    tone: str
    label: str


class EndpointLine(msgspec.Struct, frozen=True):
    """An endpoint in the list."""

    health: Health
    state: str
    because: str
    cells: list[Cell]


class Kind(msgspec.Struct, frozen=True):
    """A selectable event, with a sample as JSON."""

    name: str
    explained: str
    sample: str


async def show(request: Request) -> Answer:
    """The endpoints of this mode, and a page of those disabled recently."""
    limit = pagination.size(request)
    async with request.reading() as conn:
        found = await figures.overview(conn, request.actor)
        disabled = await endpoints.disabled(conn, request.actor, after=pagination.after(request), limit=limit + 1)
        catching = await catcher.current(conn, request.actor)
    listed = [one for one in found if one.endpoint.catches_until is None]
    ended = disabled[:limit]
    values = {
        "lines": [EndpointLine(one, *state(request, one), cells(request, one.hours)) for one in listed],
        "ended": [(one, reason(request, one)) for one in ended],
        "pages": pagination.pages(request, ended[-1].id if len(disabled) > limit else None),
        "catcher": catching,
        "most": MAX_ACTIVE,
        "most_waiting": figures.MOST_WAITING,
        "may_write": request.may("webhooks:write"),
        "base": base(request),
    }
    template = "developers/webhooks_live.html" if request.is_fragment else "developers/webhooks.html"
    return Page(template=template, values=values)


async def show_new(request: Request) -> Answer:
    """The form for an endpoint; its fragment is the rule's verdict on the address being typed."""
    if request.is_fragment:
        return Page(template="developers/webhooks_url.html", values=said_of(request, request.query.get("url", "")))
    return Page(template="developers/webhooks_new.html", values=typed(request, USUAL))


async def make(request: Request) -> Answer:
    """Register an endpoint, and show its secret, only here."""
    form = request.form

    async def work(conn: Connection) -> dict[str, str]:
        endpoint, secret = await endpoints.create(
            conn,
            request.actor,
            url=form.get("url", "").strip(),
            subscribed_events=chosen(request),
            rules=rules(request),
            description=form.get("description", ""),
        )
        return {"id": str(endpoint.id), "url": endpoint.url, "secret": secret}

    try:
        made = await request.once(work, has_secret=True)
    except (Invalid, TooManyEndpoints) as refusal:
        return refused("developers/webhooks_new.html", form_refusal(request, refusal), typed(request))
    return registered(made, is_catcher=False)


def registered(made: dict[str, str], *, is_catcher: bool) -> Answer:
    """A new endpoint's secret, with code that verifies signatures."""
    values = {"made": made, "pieces": pieces(made["secret"]), "is_rotated": False, "until": None}
    return Page(template="developers/webhooks_made.html", values=values | {"is_catcher": is_catcher})


def base(request: Request) -> str:
    """The base URL of this installation: `public_url`, or as seen by this request."""
    given = request.services.settings.public_url or request.headers.get(b"origin", b"").decode("latin-1")
    return (given or f"{'https' if request.is_secure else 'http'}://{request.host}").rstrip("/")


def rules(request: Request) -> EndpointRules:
    """The settings' rules for endpoints."""
    return endpoints.rules(request.services.settings)


def pieces(secret: str) -> list[tuple[str, str, str]]:
    """Verification code for a secret: (language, its display name, code)."""
    return [(name, title, verification.code(name, secret)) for name, title in verification.LANGUAGES]


def chosen(request: Request) -> list[str]:
    """The events that were ticked."""
    return [one for one in request.form.get("subscribed_events", "").split(",") if one]


def typed(request: Request, usual: tuple[str, ...] = ()) -> dict[str, Any]:
    """The form as typed; initially with the `usual` events."""
    form = request.form
    ticked = chosen(request) if form else list(usual)
    groups: dict[str, list[Kind]] = {}
    for name in KINDS:
        sample = msgspec.json.format(msgspec.json.encode(samples()[name]), indent=2).decode()
        groups.setdefault(name.partition(".")[0], []).append(Kind(name, request.text(SUMMARIES[name]), sample))
    url = form.get("url", "")
    return {
        "url": url,
        "description": form.get("description", ""),
        "groups": [(request.text(words.EVENT_GROUPS[name]), kinds) for name, kinds in groups.items()],
        "ticked": ticked,
        **said_of(request, url),
    }


def said_of(request: Request, url: str) -> dict[str, Any]:
    """The rule's verdict on an address, as far as possible without connecting to it."""
    url = url.strip()
    problem = endpoints.problem_of(url, rules(request)) if url else None
    return {
        "problem": None if problem is None else request.text(words.URL_PROBLEMS.get(problem, problem)),
        "is_fine": bool(url) and problem is None,
    }


def form_refusal(request: Request, refusal: Invalid | TooManyEndpoints) -> Invalid:
    """The rule's refusals in the form's wording."""
    if isinstance(refusal, TooManyEndpoints):
        return Invalid(("url", "limit", refusal.message))
    problem = endpoints.problem_of(request.form.get("url", "").strip(), rules(request)) or ""
    told = {**words.ENDPOINT_FORM, "url": words.URL_PROBLEMS.get(problem, problem)}
    return Invalid(
        *((one["field"], one["issue"], told.get(one["field"], one["message"])) for one in refusal.details["fields"])
    )


def state(request: Request, health: Health) -> tuple[str, str]:
    """(an endpoint's state in a word, the reason)"""
    return request.text(words.ENDPOINT_STATES[health.state]), reason(request, health.endpoint)


def reason(request: Request, endpoint: Endpoint) -> str:
    """Why an endpoint is disabled; empty if it is not."""
    known = None if endpoint.disabled_reason is None else why("endpoint", endpoint.disabled_reason)
    return "" if known is None else known.words(request.locale.language).customer


def cells(request: Request, hours: list[Hour]) -> list[Cell]:
    """The strip of an endpoint, one cell per hour."""
    return [
        Cell(
            "idle" if not one.results else "good" if not one.failed else "bad" if not one.delivered else "some",
            request.text(
                "%(hour)s: %(delivered)s delivered, %(failed)s failed",
                hour=request.locale.time(one.at),
                delivered=request.locale.number(one.delivered),
                failed=request.locale.number(one.failed),
            ),
        )
        for one in hours
    ]
