"""Routes of the console's door."""

from __future__ import annotations

from heliograph.console.door import account, setup, sign_in
from heliograph.pages.people import own_email, own_passkeys
from heliograph.pages.people.door import signed_out, tell_session
from heliograph.pages.pieces.preferences import set_preferences
from heliograph.pages.routes import Route, own, public

ROUTES: tuple[Route, ...] = (
    public("GET", "/console", sign_in.redirect_home),
    public("GET", "/console/login", sign_in.show_form),
    public("POST", "/console/login", sign_in.sign_in),
    public("POST", "/console/login/code", sign_in.sign_in_code),
    public("POST", "/console/login/passkey", sign_in.sign_in_passkey),
    public("GET", "/console/session", tell_session),
    public("POST", "/console/preferences", set_preferences),
    public("GET", "/console/setup", setup.show_link),
    public("POST", "/console/setup", setup.enter),
    own("GET", "/console/setup/account", setup.show_account),
    own("POST", "/console/setup/account", setup.keep_account),
    own("GET", "/console/setup/factor", setup.show_factor),
    own("POST", "/console/setup/factor", setup.turn_factor_on),
    own("GET", "/console/setup/next", setup.show_next),
    own("POST", "/console/logout", signed_out),
    own("POST", "/console/prove", sign_in.prove, is_proved=True),
    own("GET", "/console/account", account.show),
    own("POST", "/console/account", account.change),
    own("GET", "/console/account/email", own_email.show, is_proved=True),
    own("POST", "/console/account/email", own_email.ask, is_proved=True),
    own("POST", "/console/account/email/withdraw", own_email.withdraw),
    own("GET", "/console/account/passkeys/new", own_passkeys.show_new, is_proved=True),
    own("POST", "/console/account/passkeys", own_passkeys.add, is_proved=True),
    own("POST", "/console/account/passkeys/{id}/remove", own_passkeys.remove, is_proved=True),
    own("POST", "/console/account/sessions/end", account.end_others),
    own("POST", "/console/account/sessions/{id}/end", account.end_session),
)
