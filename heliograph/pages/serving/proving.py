"""Authenticating again before critical actions: by password or passkey, or by a mailed link for those who have no
password; without losing the form."""

from __future__ import annotations

from heliograph.base.errors import Invalid
from heliograph.mail import outbox
from heliograph.pages import forgery
from heliograph.pages.answers import Answer, Page
from heliograph.pages.people import door, passkeys
from heliograph.pages.pieces import pasted
from heliograph.pages.realms import DASHBOARD
from heliograph.pages.requests import Request
from heliograph.people import signing_in
from heliograph.people.mailing import forgotten
from heliograph.people.passkeys import challenges, checking
from heliograph.people.passkeys.challenges import PasskeyRefused
from heliograph.people.passwords import TooManySignIns
from heliograph.people.tries import TooManyTries, WrongSignIn

PROVE_FIELD, CHALLENGE_FIELD, CREDENTIAL_FIELD, LINK_FIELD = "_password", "_challenge", "_credential", "_link"


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
    ours = (PROVE_FIELD, CHALLENGE_FIELD, CREDENTIAL_FIELD, LINK_FIELD, forgery.FIELD)
    kept = {name: value for name, value in request.form.items() if name not in ours}
    action = request.to(request.path, **{name: value for name, value in request.query.items() if name != "mode"})
    is_write, is_sent, is_early = request.method == "POST", False, False
    # A submitted file is kept in the page, as text. One that cannot be is refused here, and the other fields stay.
    file, wrong_file = None, ""
    if takes_file and is_write:
        try:
            file = await pasted.text(request)
        except Invalid as unusable:
            file, wrong_file = "", unusable.details["fields"][0]["message"]
    box = outbox.of(request.services.settings) if request.realm is DASHBOARD and not person.has_password else None
    if box is not None and is_write and LINK_FIELD in request.form:
        is_early = await forgotten.is_recent(request.services.pool, user_id=person.user_id)
        try:
            await forgotten.ask(
                request.services.pool,
                box,
                email=person.email,
                language=request.locale.language,
                address=request.address,
                following=request.query.get("next") or request.again(),
            )
            is_sent = True
        except TooManyTries as wrong:
            refusal = Invalid((LINK_FIELD, wrong.code, door.refusal_text(request, wrong)))
    values = {"kept": kept, "file": file, "wrong_file": wrong_file, "action": action, "is_write": is_write}
    return Page(
        template="prove.html",
        values=values
        | {"sends": box is not None, "is_sent": is_sent, "is_early": is_early, **passkeys.asking(request)},
        status=422 if refusal or wrong_file else 403,
        refusal=refusal,
    )
