"""Operators: the people who run the installation, their roles, factors, links and sessions."""

from __future__ import annotations

from typing import Any

from heliograph.base.errors import Invalid
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.people import links, users
from heliograph.people.operators import accounts, roles, sessions
from heliograph.people.operators.accounts import LastRoot, ListedOperator

HERE = "/console/operators"


async def show(request: Request) -> Answer:
    """All operators."""
    async with request.reading() as conn:
        listed = await accounts.list_all(conn)
    return Page(template="administration/operators.html", values={"operators": listed})


async def show_new(request: Request) -> Answer:
    """The form for a new operator."""
    return Page(template="administration/operator_new.html", values=_typed(request))


async def add(request: Request) -> Answer:
    """Make somebody an operator, and show the setup link, once."""
    form = request.form
    try:
        async with request.writing() as conn, conn.transaction():
            user, _ = await users.ensure(
                conn, request.principal, email=form.get("email", ""), name=form.get("name", "")
            )
            await accounts.add(conn, request.principal, user_id=user.id, email=user.email, role=form.get("role", ""))
            token = await links.make(conn, request.principal, user_id=user.id, realm="console")
    except Invalid as refusal:
        return refused("administration/operator_new.html", refusal, _typed(request))
    return _link(request, user.email, token)


async def show_one(request: Request) -> Answer:
    """One operator, with forms to change the role, create a link, end sessions, or remove them."""
    return Page(template="administration/operator.html", values=await _of(request, await _operator(request)))


async def change_role(request: Request) -> Answer:
    """Change the role; it takes effect in all their sessions within a second."""
    one = await _operator(request)
    try:
        async with request.writing() as conn:
            await accounts.change_role(
                conn, request.principal, user_id=one.user_id, email=one.email, role=request.form.get("role", "")
            )
    except (LastRoot, Invalid) as refusal:
        wrong = refusal if isinstance(refusal, Invalid) else Invalid(("role", refusal.code, refusal.message))
        return refused("administration/operator.html", wrong, await _of(request, one))
    return Redirect(location=HERE, notice=request.text("The role is changed."))


async def make_link(request: Request) -> Answer:
    """Create a new setup link, for somebody who lost their password or factor; shown once."""
    one = await _operator(request)
    async with request.writing() as conn:
        token = await links.make(conn, request.principal, user_id=one.user_id, realm="console")
    return _link(request, one.email, token)


async def end_sessions(request: Request) -> Answer:
    """Sign them out everywhere in the console."""
    one = await _operator(request)
    async with request.writing() as conn:
        await sessions.end_all(conn, request.principal, user_id=one.user_id)
    return Redirect(location=f"{HERE}/{one.user_id}", notice=request.text("All sessions were ended."))


async def remove(request: Request) -> Answer:
    """Revoke access to the console; their account stays."""
    one = await _operator(request)
    try:
        confirming.check(request, one.email)
        async with request.writing() as conn:
            await accounts.remove(conn, request.principal, user_id=one.user_id, email=one.email)
    except (LastRoot, Invalid) as refusal:
        wrong = refusal if isinstance(refusal, Invalid) else Invalid((confirming.FIELD, refusal.code, refusal.message))
        return refused("administration/operator.html", wrong, await _of(request, one))
    return Redirect(location=HERE, notice=request.text("%(name)s is no longer an operator.", name=one.name))


async def _operator(request: Request) -> ListedOperator:
    wanted = request.id()
    async with request.reading() as conn:
        return await accounts.get(conn, user_id=wanted)


def _offered(request: Request) -> list[tuple[str, str, str]]:
    """Roles on offer: (name, title, what it may do)."""
    return [
        (name, request.text(words.ROLES[name]), request.text(words.OPERATORS_EXPLAINED[name])) for name in roles.ROLES
    ]


def _typed(request: Request) -> dict[str, Any]:
    form = request.form
    return {
        "roles": _offered(request),
        "email": form.get("email", ""),
        "name": form.get("name", ""),
        "chosen": form.get("role", "operator"),
    }


async def _of(request: Request, one: ListedOperator) -> dict[str, Any]:
    async with request.reading() as conn:
        opened = await sessions.list_all(conn, user_id=one.user_id)
    return {
        "one": one,
        "sessions": opened,
        "roles": _offered(request),
        "chosen": request.form.get("role", one.role),
    }


def _link(request: Request, email: str, token: str) -> Answer:
    base = request.headers.get(b"origin", b"").decode("latin-1")
    values = {"link": links.address(base, token, realm="console"), "email": email}
    return Page(template="administration/operator_link.html", values=values)
