"""Routes of the door: for everybody, or for a person regardless of their organization."""

from __future__ import annotations

from heliograph.dashboard import listing
from heliograph.dashboard.door import account, invitation, sign_in, viewing
from heliograph.pages.lists import columns
from heliograph.pages.people import own_email, own_passkeys
from heliograph.pages.people.door import signed_out, tell_session
from heliograph.pages.pieces.preferences import set_preferences
from heliograph.pages.routes import Route, own, public

ROUTES: tuple[Route, ...] = (
    public("GET", "/login", sign_in.show_form),
    public("POST", "/login", sign_in.sign_in, is_harmless=True),
    public("POST", "/login/code", sign_in.sign_in_code, is_harmless=True),
    public("POST", "/login/passkey", sign_in.sign_in_passkey, is_harmless=True),
    public("GET", "/login/forgotten", sign_in.show_forgotten),
    public("POST", "/login/forgotten", sign_in.forgotten),
    public("GET", "/enter", sign_in.show_enter),
    public("POST", "/enter", sign_in.enter, is_harmless=True),
    public("GET", "/view", viewing.show),
    public("POST", "/view", viewing.take_up, is_harmless=True),
    public("GET", "/session", tell_session),
    public("POST", "/preferences", set_preferences, is_harmless=True),
    own("POST", "/columns/{list}", columns.keeper(listing.COLUMNS)),
    own("POST", "/logout", signed_out, is_harmless=True),
    own("POST", "/prove", sign_in.prove, is_proved=True),
    own("GET", "/account", account.show),
    own("POST", "/account", account.change),
    own("GET", "/account/password", account.show_password, is_proved=True),
    own("POST", "/account/password", account.change_password, is_proved=True),
    own("GET", "/account/factor", account.show_factor, is_proved=True),
    own("POST", "/account/factor", account.turn_factor_on, is_proved=True),
    own("POST", "/account/factor/off", account.turn_factor_off, is_proved=True),
    own("GET", "/account/email", own_email.show, is_proved=True),
    own("POST", "/account/email", own_email.ask, is_proved=True),
    own("POST", "/account/email/withdraw", own_email.withdraw),
    own("GET", "/account/passkeys/new", own_passkeys.show_new, is_proved=True),
    own("POST", "/account/passkeys", own_passkeys.add, is_proved=True),
    own("POST", "/account/passkeys/{id}/remove", own_passkeys.remove, is_proved=True),
    own("POST", "/account/sessions/end", account.end_others),
    own("POST", "/account/sessions/{id}/end", account.end_session),
    own("GET", "/organizations/{id}/look", account.show_switch),
    own("POST", "/organizations/{id}/look", account.switch),
    public("GET", "/account/email/confirm", own_email.show_confirm),
    public("POST", "/account/email/confirm", own_email.confirm, is_harmless=True),
    public("GET", "/invitation", invitation.show),
    public("POST", "/invitation", invitation.read),
    public("POST", "/invitation/accept", invitation.accept),
)
