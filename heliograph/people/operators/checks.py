"""Detects guessing at operators' accounts, which give access to everything; reported like any other problem."""

from __future__ import annotations

from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check, said
from heliograph.people import tries
from heliograph.people.tries import FREE_ACCOUNT

#: Maximum operators examined.
MOST = 200
OPERATORS = f"SELECT u.id, u.email FROM operators o JOIN users u ON u.id = o.user_id ORDER BY o.created_at LIMIT {MOST}"


async def run(conn: Connection, settings: Settings) -> list[Check]:
    """Checks consecutive failures, as counted and kept by `tries`. A wrong code implies a correct password."""
    name = said("sign-ins")
    people = {row["id"]: row["email"] for row in await conn.fetch(OPERATORS)}
    known = await tries.standing(conn, list(people.values()))
    of_codes = await tries.standing(conn, [tries.of_code(id) for id in people], are_codes=True)
    codes = {email: of_codes.get(tries.of_code(id), 0) for id, email in people.items()}
    remedy = said(
        "Ask them whether it was them. `heliograph user link EMAIL --operator` makes a link to set a new password and "
        "second factor; each further try has to wait longer meanwhile."
    )
    if guessed := [email for email, count in codes.items() if count >= FREE_ACCOUNT]:
        names = ", ".join(guessed)
        detail = said("somebody knows the password of %(names)s, and is guessing the second factor", names=names)
        return [Check(name, "failed", detail, remedy)]
    if guessed := [email for email in people.values() if known.get(email, 0) >= FREE_ACCOUNT]:
        detail = said("several attempts to sign in as %(names)s have failed in a row", names=", ".join(guessed))
        return [Check(name, "warning", detail, remedy)]
    return [Check(name, "ok", said("nobody is guessing an operator's password"))]
