"""Building an operation from a handler and its line of the route table."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts.requests import Answer
from heliograph.api.door.operation import NONE, OPTIONAL, Call, Handler, Operation, described, operation
from heliograph.base.errors import NotFound


class Given(msgspec.Struct):
    """The request's fields."""


class Meant(msgspec.Struct):
    """The request's query."""


class Asked(msgspec.Struct):
    """The path."""


class Answered(msgspec.Struct):
    """The response."""


async def canonical(body: Given) -> Meant:
    return Meant()


@operation(status=201, canonical=canonical, refusals=(NotFound,), has_secret=True)
async def make_whatsapp_thing(call: Call, thing_id: UUID, body: Meant, query: Asked) -> Annotated[Answer, Answered]:
    """Make a thing.

    The first paragraph goes
    over two lines.

    The second does not.
    """
    return call, thing_id, body, query  # type: ignore[return-value]


async def plain(call: Call) -> Answered:
    """Ask."""
    return Answered()


async def silent(call: Call) -> Answered:
    return Answered()


def line(handler: Handler, path: str = "/things/{thingId}") -> Operation:
    return described("POST", path, handler, "things:write", "mutations", OPTIONAL)


def test_everything_is_read_off_the_handler() -> None:
    made = line(make_whatsapp_thing)
    assert (made.id, made.summary) == ("makeWhatsAppThing", "Make a thing")
    assert made.description == "The first paragraph goes over two lines.\n\nThe second does not."
    assert (made.request, made.query, made.response) == (Given, Asked, Answered)
    assert (made.status, made.refusals, made.canonical) == (201, (NotFound,), canonical)
    assert (made.has_secret, made.live_only, made.is_probe, made.own_commit, made.mutates) == (
        True,
        False,
        False,
        True,
        True,
    )


def test_what_is_not_declared_is_usual() -> None:
    made = described("GET", "/things", plain, None, None, NONE)
    assert (made.id, made.summary, made.description) == ("plain", "Ask", "")
    assert (made.request, made.query, made.response, made.status) == (None, None, Answered, 200)
    assert (made.refusals, made.canonical, made.own_commit, made.mutates) == ((), None, False, False)


async def test_a_handler_gets_what_it_names() -> None:
    call = Call(None)  # type: ignore[arg-type]
    id = UUID(int=7)
    call.parameters, call.body, call.query = {"thingId": str(id)}, Meant(), Asked()
    answer: Any = await line(make_whatsapp_thing).run(call)
    assert answer == (call, id, call.body, call.query)
    assert isinstance(await line(plain, "/things").run(call), Answered)


@pytest.mark.parametrize(
    ("handler", "path", "said"),
    [
        (make_whatsapp_thing, "/things", "does not take the parameters of /things: none"),
        (plain, "/things/{thingId}", "does not take the parameters of /things/{thingId}: thing_id"),
        (silent, "/things", "has no docstring"),
    ],
)
def test_a_handler_that_does_not_fit_its_line_is_refused(handler: Handler, path: str, said: str) -> None:
    with pytest.raises(TypeError, match=said.replace("{", r"\{").replace("}", r"\}")):
        line(handler, path)
