"""Routes of organizations."""

from __future__ import annotations

from heliograph.console.administration import audit
from heliograph.console.organizations import (
    campaigning,
    configuring,
    creating,
    limits,
    listing,
    looking,
    members,
    noting,
    one,
    viewing,
)
from heliograph.pages.routes import Route, get, post
from heliograph.people.operators.roles import (
    AUDIT,
    LOOK,
    MONEY,
    MONEY_CHANGE,
    OPERATORS,
    ORGANIZATIONS,
    ORGANIZATIONS_CHANGE,
)

MEMBERS, INVITATIONS = "/console/organizations/{id}/members", "/console/organizations/{id}/invitations/{invitation}"
CAMPAIGN = "/console/organizations/{id}/campaigns/{campaign}"

ROUTES: tuple[Route, ...] = (
    get("/console/organizations", listing.show, permission=ORGANIZATIONS),
    get("/console/organizations/new", creating.show, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post("/console/organizations", creating.create, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    get("/console/organizations/{id}", one.show, permission=ORGANIZATIONS),
    get("/console/organizations/{id}/traffic", looking.show_traffic, permission=ORGANIZATIONS),
    get(MEMBERS, members.show, permission=ORGANIZATIONS),
    get(f"{MEMBERS}/invite", members.show_invite, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(f"{MEMBERS}/invite", members.invite, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    get(f"{MEMBERS}/{{member}}", members.show_one, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(f"{MEMBERS}/{{member}}/role", members.change_role, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(f"{MEMBERS}/{{member}}/link", members.make_link, permission=OPERATORS, is_proved=True),
    post(f"{MEMBERS}/{{member}}/remove", members.remove, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(f"{INVITATIONS}/renew", members.renew, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post(f"{INVITATIONS}/withdraw", members.withdraw, permission=ORGANIZATIONS_CHANGE),
    get("/console/organizations/{id}/history", audit.show_organization, permission=AUDIT),
    get("/console/organizations/{id}/webhooks", looking.show_webhooks, permission=ORGANIZATIONS),
    get("/console/organizations/{id}/campaigns", looking.show_campaigns, permission=ORGANIZATIONS),
    post(f"{CAMPAIGN}/pause", campaigning.pause, permission=ORGANIZATIONS_CHANGE),
    post(f"{CAMPAIGN}/resume", campaigning.resume, permission=ORGANIZATIONS_CHANGE),
    get(f"{CAMPAIGN}/cancel", campaigning.show_cancel, permission=ORGANIZATIONS_CHANGE),
    post(f"{CAMPAIGN}/cancel", campaigning.cancel, permission=ORGANIZATIONS_CHANGE),
    get("/console/organizations/{id}/settings", configuring.show, permission=ORGANIZATIONS),
    post("/console/organizations/{id}/settings", configuring.change, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    get("/console/organizations/{id}/whatsapp", looking.show_whatsapp, permission=ORGANIZATIONS),
    get("/console/organizations/{id}/money", looking.show_money, permission=MONEY),
    get("/console/organizations/{id}/suspend", one.show_suspend, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/suspend", one.suspend, permission=ORGANIZATIONS_CHANGE),
    get("/console/organizations/{id}/view", viewing.show, permission=LOOK, is_proved=True),
    post("/console/organizations/{id}/view", viewing.begin, permission=LOOK, is_proved=True),
    get("/console/organizations/{id}/limits", limits.show, permission=ORGANIZATIONS),
    post("/console/organizations/{id}/plan", limits.set_plan, permission=MONEY_CHANGE, is_proved=True),
    post("/console/organizations/{id}/spending", limits.set_limits, permission=MONEY_CHANGE, is_proved=True),
    post("/console/organizations/{id}/countries", limits.set_countries, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/state", limits.set_state, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/texts", limits.set_sealing, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/rates", limits.set_rates, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/kept", limits.set_kept, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    get("/console/organizations/{id}/close", limits.show_close, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post("/console/organizations/{id}/close", limits.close, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    get("/console/organizations/{id}/notes", noting.show, permission=ORGANIZATIONS),
    post("/console/organizations/{id}/notes", noting.add, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/notes/{note}/remove", noting.remove, permission=ORGANIZATIONS_CHANGE),
    get("/console/organizations/{id}/erase", noting.show_erase, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post("/console/organizations/{id}/erase", noting.erase, permission=ORGANIZATIONS_CHANGE, is_proved=True),
    post("/console/organizations/{id}/resume", one.resume, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/rename", one.rename, permission=ORGANIZATIONS_CHANGE),
    post("/console/organizations/{id}/quota", one.grant, permission=MONEY_CHANGE, is_proved=True),
)
