"""Authenticating again before critical actions: by password or passkey, without losing the form."""

from __future__ import annotations

from heliograph.base.errors import Invalid
from heliograph.pages import forgery
from heliograph.pages.answers import Answer, Page
from heliograph.pages.people import passkeys
from heliograph.pages.pieces import pasted
from heliograph.pages.requests import Request
from heliograph.people import signing_in
from heliograph.people.passkeys import challenges, checking
from heliograph.people.passkeys.challenges import PasskeyRefused
from heliograph.people.passwords import TooManySignIns
from heliograph.people.tries import TooManyTries, WrongSignIn

PROVE_FIELD, CHALLENGE_FIELD, CREDENTIAL_FIELD = "_password", "_challenge", "_credential"


async def prove(request: Request, *, takes_file: bool) -> Answer | None:
    """A page that asks for the password, carrying the form being submitted; None once authenticated."""
    person = request.session
    assert person is not None
    given = request.form.get(PROVE_FIELD) if request.method == "POST" else None
    refusal = None
    if given is not None:
        try:
            await signing_in.prove_again(
                request.services.pool,
                request.services.guesses,
                session_id=person.id,
                user_id=person.user_id,
                password=given,
                address=request.address,
            )
            async with request.writing() as conn:
                await request.realm.prove(conn, id=person.id, user_id=person.user_id)
            request.services.sessions.forget(request.token)
            return None
        except (WrongSignIn, TooManyTries, TooManySignIns) as wrong:  # in any case, what was typed is kept
            if not isinstance(wrong, TooManySignIns):
                request.services.failures.note(request.address, door=request.realm.name)
            refusal = Invalid((PROVE_FIELD, wrong.code, wrong.message))
    challenge = request.form.get(CHALLENGE_FIELD) if request.method == "POST" else None
    where = passkeys.site_of(request)
    if challenge is not None and where is not None:
        try:
            asked = challenges.read_challenge(passkeys.key(request), challenge)
            shown = request.form.get(CREDENTIAL_FIELD, "")
            async with request.writing() as conn, conn.transaction():
                await checking.check(conn, where, asked=asked, given=shown, user_id=person.user_id)
                await request.realm.prove(conn, id=person.id, user_id=person.user_id)
            request.services.sessions.forget(request.token)
            return None
        except PasskeyRefused as wrong:
            request.services.failures.note(request.address, door=request.realm.name)
            refusal = Invalid((PROVE_FIELD, "wrong", wrong.message))
    ours = (PROVE_FIELD, CHALLENGE_FIELD, CREDENTIAL_FIELD, forgery.FIELD)
    kept = {name: value for name, value in request.form.items() if name not in ours}
    action = request.to(request.path, **{name: value for name, value in request.query.items() if name != "mode"})
    # A file being submitted is kept in the page, as text.
    file = await pasted.text(request) if takes_file and request.method == "POST" else None
    is_write = request.method == "POST"
    return Page(
        template="prove.html",
        values={"kept": kept, "file": file, "action": action, "is_write": is_write, **passkeys.asking(request)},
        status=422 if refusal else 403,
        refusal=refusal,
    )
