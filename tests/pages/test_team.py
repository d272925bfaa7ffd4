"""The team: invitations, roles, and who may change whom."""

from __future__ import annotations

import html
import re
import urllib.parse

import pytest

from heliograph.accounts import organizations
from heliograph.base.actor import SYSTEM, Actor
from heliograph.base.database.pool import Pool
from heliograph.people import invitations, memberships, users
from heliograph.people.memberships import LastOwner
from heliograph.people.passkeys import keeping
from heliograph.people.passkeys.challenges import StoredPasskey

from .conftest import PASSWORD, Browser, Page, Tenant, app_of, make_person, make_tenant, wrong_code


def link_in(page: Page) -> str:
    found = re.search(r'value="(http[^"]*/invitation#[^"]+)"', page.text)
    assert found, page.words
    return found[1]


async def invite(owner: Browser, email: str, role: str = "developer") -> str:
    page = await owner.submit(await owner.get("/team/invite"), "/team/invite", email=email, role=role)
    return link_in(page)


async def test_an_invitation_makes_an_account_and_a_member(pool: Pool, owner: Browser, other_browser: Browser) -> None:
    link = await invite(owner, " Rui@Example.com ")
    assert "rui@example.com" in (await owner.get("/team")).words
    assert link.partition("#")[2] not in (await owner.get("/team")).text
    page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
    assert "Join Acme" in page.words
    weak = await other_browser.submit(page, "/invitation/accept", name="Rui Costa", password="short")
    assert (weak.status, 'value="Rui Costa"' in weak.text, "short" in weak.text) == (422, True, False)
    page = await other_browser.submit(weak, "/invitation/accept", name="Rui Costa", password=PASSWORD)
    # A second factor is offered at once, and can be left for later.
    assert (page.path, 'href="/">Not now<' in page.text) == ("/account/factor?new=yes", True)
    wrong = await other_browser.submit(page, "/account/factor?new=yes", code=wrong_code(app_of(page)))
    assert (wrong.status, 'href="/">Not now<' in wrong.text) == (422, True)
    assert "Not now" not in (await other_browser.get("/account/factor")).words
    assert (await other_browser.get("/")).status == 200
    page = await owner.get("/team")
    assert "Rui Costa" in page.words
    assert "Pending invitations" not in page.words
    page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
    assert (page.status, "This invitation was accepted" in page.words) == (422, True)
    told = await pool.fetch("SELECT action, who FROM audit_log WHERE action ~ '^(member|invitation)' ORDER BY id")
    assert [tuple(row) for row in told] == [
        ("member.added", "system"),
        ("invitation.made", "person"),
        ("member.added", "person"),
    ]


async def test_an_invitation_open_in_two_tabs_is_accepted_once(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """The second tab's form was refused as foreign, or as of an invitation that had ended: who had joined was told to
    ask for a new one."""
    told = "You have joined Acme already."
    link = await invite(owner, "rui@example.com")
    tabs = [await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link) for _ in "ab"]
    for tab in tabs:
        page = await other_browser.submit(tab, "/invitation/accept", name="Rui Costa", password=PASSWORD)
    assert (page.status, page.path, told in page.words) == (200, "/", True), page.words
    # The same with an account, whose session looks at another organization meanwhile.
    beta = await make_tenant(pool)
    async with pool.acquire() as conn:
        _, token, _ = await invitations.invite(conn, beta.actor, email="rui@example.com", role="viewer")
    tabs = [await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=token) for _ in "ab"]
    await other_browser.submit(tabs[0], "/invitation/accept")
    await pool.execute("UPDATE organizations SET name = 'Beta' WHERE id = $1", beta.id)
    page = await other_browser.get("/account")
    await other_browser.submit(page, f"/organizations/{tenant.id}/look")
    page = await other_browser.submit(tabs[1], "/invitation/accept")
    assert (page.path, "You have joined Beta already." in page.words) == (f"/organizations/{beta.id}/look", True)
    # Who does not belong to it is told nothing about it.
    page = await owner.submit(await owner.get("/invitation"), "/invitation", link=token)
    form = tabs[1].form("/invitation/accept") | {"_token": page.form("/invitation")["_token"]}
    page = await owner.post("/invitation/accept", form)
    assert (page.status, "This invitation was accepted" in page.words, "Beta" in page.words) == (410, True, False)


async def test_an_invitation_that_was_open_before_signing_in_says_whom_it_signs_out(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    link = await invite(owner, "rui@example.com")
    tab = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    page = await other_browser.submit(tab, "/invitation/accept", name="Rui Costa", password=PASSWORD)
    assert "You are signed in as vera@example.com. Joining" in page.words, page.words
    assert await pool.fetchval("SELECT count(*) FROM users WHERE email = 'rui@example.com'") == 0
    page = await other_browser.submit(page, "/invitation/accept", password=PASSWORD)
    assert "Rui Costa" in (await other_browser.get("/")).words


async def test_a_double_click_makes_one_invitation(owner: Browser) -> None:
    form = (await owner.get("/team/invite")).form("/team/invite") | {"email": "rui@example.com", "role": "viewer"}
    first, second = await owner.post("/team/invite", form), await owner.post("/team/invite", form)
    assert link_in(first) == link_in(second)
    other = await owner.post("/team/invite", form | {"email": "eva@example.com"})
    assert other.status == 409
    # The object is shown as it is now, with what can be done.
    for said in ("That has changed in the meantime", "This is its current state.", "rui@example.com", "Withdraw"):
        assert said in other.words, said
    assert "eva@example.com" not in other.words


async def test_an_account_that_is_there_is_not_taken_over(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    async with pool.acquire() as conn:
        beta = await organizations.create(conn, name="Beta")
    elsewhere = Tenant(beta.id, Actor(beta.id, None, "live", frozenset(), "active"), "", beta.id)
    await make_person(pool, elsewhere, "eva@example.com", password=None)
    link = await invite(owner, "eva@example.com")
    page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
    assert "This address has an account" in page.words
    token = link.partition("#")[2]
    for person in (other_browser, owner):  # a stranger; and the inviter, who has the link too
        fields = {"invitation": token, "name": "Eve", "password": PASSWORD}
        if person is owner:
            fields["_token"] = (await owner.get("/account")).form("/account")["_token"]
        page = await person.post("/invitation/accept", fields)
        assert "This address has an account" in page.words
    assert await pool.fetchval("SELECT password FROM users WHERE email = 'eva@example.com'") is None
    assert await pool.fetchval("SELECT count(*) FROM memberships WHERE organization_id = $1", tenant.id) == 1


async def test_whoever_has_an_account_joins_by_signing_in(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    async with pool.acquire() as conn:
        beta = await organizations.create(conn, name="Beta")
    elsewhere = Tenant(beta.id, Actor(beta.id, None, "live", frozenset(), "active"), "", beta.id)
    await make_person(pool, elsewhere, "eva@example.com")
    link = await invite(owner, "eva@example.com", "billing")
    page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
    assert "This address has an account" in page.words
    # The link is not needed again, and its token is in no address.
    page = await other_browser.get(re.findall('href="(/login[^"]*)"', page.text)[0])
    page = await other_browser.submit(page, "/login", email="eva@example.com", password=PASSWORD)
    assert (page.path, "Join Acme" in page.words) == ("/invitation", True)
    page = await other_browser.submit(page, "/invitation/accept")
    assert "Join Acme" not in (await other_browser.get("/invitation")).words
    page = await other_browser.get("/account")
    assert "Acme Billing" in page.words
    notices = await owner.get("/notices")
    assert "has joined the team." in notices.words
    assert "Billing ·" in notices.words
    # As a member of two, they switch in the bar at the top.
    assert 'class="who organizations"' in page.text
    assert 'class="who organizations"' not in notices.text
    # And back to the other one.
    page = await other_browser.submit(page, f"/organizations/{beta.id}/look")
    assert "Beta Owner" in (await other_browser.get("/account")).words
    wrong = await other_browser.post(
        f"/organizations/{tenant.key_id}/look",
        {"_token": (await other_browser.get("/account")).form("/account")["_token"]},
    )
    assert wrong.status == 404


async def test_a_withdrawn_or_renewed_link_is_dead(pool: Pool, owner: Browser, other_browser: Browser) -> None:
    first = await invite(owner, "rui@example.com")
    page = await owner.get("/team")
    action = re.search(r"/team/invitations/[0-9a-f-]+/renew", page.text)
    assert action
    second = link_in(await owner.submit(page, action[0]))
    for link, text in ((first, "This invitation was accepted"), (second, "Join Acme")):
        page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
        assert text in page.words
    await owner.submit(await owner.get("/team"), action[0].replace("renew", "withdraw"))
    page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=second)
    assert page.status == 422
    third = await invite(owner, "rui@example.com")
    await pool.execute("UPDATE invitations SET expires_at = now()")
    page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=third)
    assert page.status == 422


async def test_the_last_owner_stays(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    (ana,) = await pool.fetch("SELECT user_id FROM memberships")
    path = f"/team/members/{ana[0]}"
    page = await owner.get(path)
    for action, fields in ((f"{path}/role", {"role": "viewer"}), (f"{path}/remove", {})):
        refused = await owner.submit(page, action, **fields)
        assert (refused.status, "last owner" in refused.words) == (422, True)
    rui = await make_person(pool, tenant, "rui@example.com", "owner")
    assert "The role is changed." in (await owner.submit(page, f"{path}/role", role="admin")).words
    with pytest.raises(LastOwner):
        async with pool.acquire() as conn:
            await memberships.remove(conn, tenant.actor, user_id=rui.id)


async def test_an_admin_changes_all_but_owners(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await make_person(pool, tenant, "eva@example.com", "admin")
    viewer = await make_person(pool, tenant, "rui@example.com", "viewer")
    ana = await pool.fetchval("SELECT id FROM users WHERE email = 'ana@example.com'")
    await other_browser.sign_in("eva@example.com")
    page = await other_browser.get("/team")
    assert f"/team/members/{ana}" not in page.text
    assert (await other_browser.get(f"/team/members/{ana}")).status == 403
    member = await other_browser.get(f"/team/members/{viewer.id}")
    assert 'value="owner"' not in member.text
    forged = await other_browser.submit(member, f"/team/members/{viewer.id}/role", role="owner")
    assert (forged.status, "Roles that may: Owner." in forged.words) == (403, True)
    page = await other_browser.submit(member, f"/team/members/{viewer.id}/role", role="sender")
    assert "The role is changed." in page.words
    refused = await other_browser.submit(
        await other_browser.get("/team/invite"), "/team/invite", email="new@example.com", role="owner"
    )
    assert refused.status == 403


async def test_a_role_that_was_taken_away_is_gone_at_once(pool: Pool, tenant: Tenant) -> None:
    """Rules ask the database, not the session's data from half a second ago."""
    eva = await make_person(pool, tenant, "eva@example.com", "admin", password=None)
    await make_person(pool, tenant, "ana@example.com", "owner", password=None)
    who = tenant.actor.principal.__class__("person", eva.id)
    actor = Actor(tenant.id, None, "live", frozenset(), "active", by=who)
    async with pool.acquire() as conn:
        await invitations.invite(conn, actor, email="a@example.com", role="viewer")
        await memberships.change_role(conn, tenant.actor, user_id=eva.id, role="viewer")
        with pytest.raises(memberships.RoleRequired):
            await invitations.invite(conn, actor, email="b@example.com", role="viewer")


async def test_an_account_made_by_invitation_takes_the_place_of_who_was(pool: Pool, owner: Browser) -> None:
    link = await invite(owner, "rui@example.com")
    page = await owner.submit(await owner.get("/invitation"), "/invitation", link=link)
    page = await owner.submit(page, "/invitation/accept", name="Rui Costa", password=PASSWORD)
    page = await owner.get("/")
    assert (page.path, "Rui Costa" in page.words) == ("/", True)
    assert await pool.fetchval("SELECT count(*) FROM sessions") == 1


async def test_an_invitation_of_somebody_else_leads_to_their_sign_in(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """Who was signed in as somebody else was sent back to an empty form for a link, without a word."""
    beta = await make_tenant(pool)
    for email in ("eva@example.com", "vera@example.com"):
        await make_person(pool, beta, email, "viewer")
    await other_browser.sign_in("vera@example.com")
    for email, account in (("new@example.com", "Your name"), ("eva@example.com", "This address has an account")):
        link = await invite(owner, email)
        page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
        for said in (account, "You are signed in as vera@example.com. Joining with the address of the invitation"):
            assert said in page.words, page.words
    where = html.unescape(re.findall('href="(/login[^"]*)"', page.text)[0])
    page = await other_browser.submit(await other_browser.get(where), "/login", email="eva@example.com", password="x")
    assert page.status == 422
    page = await other_browser.submit(page, "/login", email="eva@example.com", password=PASSWORD)
    assert (page.path, "Join Acme" in page.words) == ("/invitation", True), page.words
    assert "You are signed in as" not in page.words
    await other_browser.submit(page, "/invitation/accept")
    assert "eva@example.com" in (await other_browser.get("/account")).words


async def test_who_signs_in_with_another_account_reads_whom_the_invitation_is_for(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """They were sent to an empty form for a link, and nothing said why."""
    beta = await make_tenant(pool)
    for email in ("eva@example.com", "vera@example.com"):
        await make_person(pool, beta, email, "viewer")
    link = await invite(owner, "eva@example.com")
    page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
    (where,) = re.findall('href="(/login[^"]*)"', page.text)
    page = await other_browser.get(where)
    page = await other_browser.submit(page, "/login", email="vera@example.com", password=PASSWORD)
    for said in (
        "Join Acme",
        "with eva@example.com",
        "You are signed in as vera@example.com",
        "Open another invitation",
    ):
        assert (page.path, said in page.words) == ("/invitation", True), (said, page.words)
    assert 'action="/invitation/accept"' not in page.text
    where = html.unescape(re.findall('href="(/login[^"]*)"', page.text)[0])
    page = await other_browser.submit(
        await other_browser.get(where), "/login", email="eva@example.com", password=PASSWORD
    )
    assert ("Join Acme" in page.words, "You are signed in as" in page.words) == (True, False)
    await other_browser.submit(page, "/invitation/accept")
    assert "eva@example.com" in (await other_browser.get("/account")).words


async def test_a_second_invitation_is_not_taken_for_the_first(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """Who had opened one before signing in was shown that one for an hour, whichever link they opened."""
    beta = await make_tenant(pool)
    await pool.execute("UPDATE organizations SET name = 'Beta' WHERE id = $1", beta.id)
    await make_person(pool, beta, "rui@example.com", "viewer")
    gamma = await make_tenant(pool)
    await pool.execute("UPDATE organizations SET name = 'Gamma' WHERE id = $1", gamma.id)
    async with pool.acquire() as conn:
        _, token, _ = await invitations.invite(conn, gamma.actor, email="rui@example.com", role="viewer")
    link = await invite(owner, "rui@example.com")
    await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
    await other_browser.sign_in("rui@example.com")
    page = await other_browser.get("/invitation")
    assert ("Join Acme" in page.words, 'data-from-address="submit"' in page.text) == (True, True)
    page = await other_browser.submit(page, "/invitation", link=token)
    assert ("Join Gamma" in page.words, "Open another" in page.words) == (True, False)
    await other_browser.submit(page, "/invitation/accept")
    assert "Gamma" in (await other_browser.get("/")).words


async def test_an_account_is_not_made_over_plain_http(owner: Browser, other_browser: Browser) -> None:
    link = await invite(owner, "rui@example.com")
    page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link)
    form = page.form("/invitation/accept") | {"name": "Rui", "password": PASSWORD}
    page = await other_browser.post(
        "/invitation/accept", form, Host="heliograph.example", Origin="http://heliograph.example"
    )
    assert (page.status, "Signing in needs https here" in page.words) == (403, True)


@pytest.mark.parametrize("act", ["removed", "demoted", "gone"])
async def test_nobody_joins_by_the_word_of_somebody_who_may_not_give_it_any_more(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, act: str
) -> None:
    rui = await make_person(pool, tenant, "rui@example.com", "admin")
    await other_browser.sign_in("rui@example.com")
    theirs = await invite(other_browser, "eva@example.com")
    ours = await invite(owner, "ivo@example.com")
    async with pool.acquire() as conn:
        if act == "removed":
            await memberships.remove(conn, tenant.actor, user_id=rui.id)
        elif act == "demoted":
            await memberships.change_role(conn, tenant.actor, user_id=rui.id, role="sender")
        else:
            await users.remove(conn, tenant.actor, id=rui.id)
    for link, status in ((theirs, 422), (ours, 200)):
        page = await owner.submit(await owner.get("/invitation"), "/invitation", link=link)
        assert page.status == status, page.words
    told = await pool.fetch(
        "SELECT object_name, organization_id FROM audit_log WHERE action = 'invitation.withdrawn' ORDER BY id"
    )
    assert told == [("eva@example.com", tenant.actor.organization_id)]


async def test_the_team_says_what_is_demanded_of_it(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await make_person(pool, tenant, "bo@example.com")
    page = await owner.get("/team")
    assert "Members do not need a second factor. 2 members have none." in page.words
    assert "Sessions end after 12 hours without use, or 30 days for those who stay signed in." in page.words
    assert 'href="/settings#security"' in page.text


async def test_a_passkey_is_a_second_factor_unless_a_password_alone_signs_in_or_an_app_is_required(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    for email, password in (("bo@example.com", PASSWORD), ("cy@example.com", None)):
        one = await make_person(pool, tenant, email, password=password)
        stored = StoredPasskey(email.encode(), b"key", 0)
        async with pool.acquire() as conn:
            await keeping.add(conn, SYSTEM, user_id=one.id, made=stored, asked=email.encode(), name="Phone")
    page = await owner.get("/team")
    bo, cy = (page.words.partition(email)[2][:150] for email in ("bo@example.com", "cy@example.com"))
    assert "turned off has a passkey, but the password alone signs in too" in bo
    assert "desligado tem uma chave" in (await owner.get("/team", Accept_Language="pt")).words
    assert ("passkey" in cy, "no authenticator app yet" in cy) == (True, False)
    assert "Members do not need a second factor. 2 members have none." in page.words
    # As required, it is an authenticator app: those who sign in by passkey are asked for one.
    await pool.execute("UPDATE organizations SET factor_required = true")
    await pool.execute("UPDATE users SET totp = 'x' WHERE email = 'ana@example.com'")
    page = await owner.get("/team")
    cy = page.words.partition("cy@example.com")[2][:150]
    assert "passkey no authenticator app yet" in cy, page.words
    assert "Members need an authenticator app as a second factor. 2 members have none." in page.words


async def test_a_large_team_is_shown_page_by_page_and_each_of_it_is_found(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    assert 'id="q"' not in (await owner.get("/team")).text
    for n in range(30):
        await make_person(pool, tenant, f"p{n:02}@example.com", password=None)
    page = await owner.get("/team?limit=25")
    assert ("ana@example.com" in page.words, "p23@" in page.words, "p24@" in page.words) == (True, True, False)
    # The team's figures cover all of it.
    assert "31 members have none." in page.words
    following = re.search(r'rel="next" href="([^"]+)"', page.text)
    assert following
    page = await owner.get(following[1].replace("&amp;", "&"))
    assert ("p23@" in page.words, "p24@" in page.words, "p29@" in page.words) == (False, True, True)
    page = await owner.get("/team?q=P2")
    assert ("p29@" in page.words, "p20@" in page.words, "p19@" in page.words) == (True, True, False)
    assert "Nothing matches" in (await owner.get("/team?q=nobody")).words


async def test_one_beyond_the_longest_list_is_shown_and_removed(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """A member used to be looked up in a list of a thousand: the rest of the team could be neither changed nor
    removed."""
    last = await make_person(pool, tenant, "zoe@example.com", "viewer", password=None)
    await pool.execute(
        """
        WITH made AS (
            INSERT INTO users (id, email, name, created_at)
            SELECT gen_random_uuid(), 'm' || n || '@example.com', 'Member ' || n, now() FROM generate_series(1, $2) AS n
            RETURNING id)
        INSERT INTO memberships (organization_id, user_id, role, created_at)
        SELECT $1, id, 'viewer', now() FROM made
        """,
        tenant.id,
        1_000,
    )
    async with pool.acquire() as conn:
        assert last.id not in [one.user_id for one in await memberships.list_page(conn, tenant.actor, limit=1_000)]
    page = await owner.get(f"/team/members/{last.id}")
    assert "zoe@example.com" in page.words
    page = await owner.submit(page, f"/team/members/{last.id}/remove")
    assert page.path == "/team"
    async with pool.acquire() as conn:
        assert await memberships.role_of(conn, tenant.actor, user_id=last.id) is None


async def test_older_invitations_are_found_by_their_address(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await pool.execute(
        "INSERT INTO invitations (organization_id, id, email, role, token_hash, created_at, expires_at)"
        " SELECT $1, gen_random_uuid(), 'i' || n || '@example.com', 'viewer', sha256(n::text::bytea),"
        "        now() - make_interval(mins => n), now() + interval '1 day' FROM generate_series(10, 39) AS n",
        tenant.id,
    )
    page = await owner.get("/team?limit=25")
    assert ("i10@" in page.words, "i34@" in page.words, "i35@" in page.words) == (True, True, False)
    assert "Older invitations are found by searching for their address." in page.words
    # One whose accents are characters of their own is found by either writing, as members are.
    async with pool.acquire() as conn:
        await invitations.invite(conn, tenant.actor, email="joa\u0303o@example.com", role="viewer")
    for typed in ("jo\u00e3o", "joa\u0303o"):
        found = await owner.get("/team?" + urllib.parse.urlencode({"q": typed}))
        assert ("joa\u0303o@" in found.words, "i10@" in found.words) == (True, False), typed
    page = await owner.get("/team?limit=25&q=I39")
    assert ("i39@" in page.words, "i10@" in page.words, "Older invitations" in page.words) == (True, False, False)


async def test_who_was_removed_in_another_tab_is_removed_again_without_an_error(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    rui = await make_person(pool, tenant, "rui@example.com", "viewer")
    page = await owner.get(f"/team/members/{rui.id}")
    assert (await owner.submit(page, f"/team/members/{rui.id}/remove")).path == "/team"
    again = await owner.submit(page, f"/team/members/{rui.id}/remove")
    # The list where they were, and why nothing was done.
    for said in ("That has changed in the meantime", "There is no such member.", "Invite somebody", "ana@example.com"):
        assert said in again.words, (said, again.words)
    assert (again.status, "rui@example.com" in again.words) == (404, False)
    assert ("This is where it was." in again.words, "its current state" in again.words) == (True, False)
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'member.removed'") == 1
    # A page that is not there is nothing else.
    assert "Not found" in (await owner.get(f"/team/members/{rui.id}")).words
