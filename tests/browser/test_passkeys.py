"""Passkeys in a real browser, with Chromium's virtual authenticator."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import CDPSession, Page

from .conftest import PASSWORD, Site


async def device(page: Page) -> tuple[CDPSession, str]:
    """A virtual authenticator for this page, which stores passkeys and verifies its user."""
    session = await page.context.new_cdp_session(page)
    await session.send("WebAuthn.enable")
    made = await session.send(
        "WebAuthn.addVirtualAuthenticator",
        {
            "options": {
                "protocol": "ctap2",
                "transport": "internal",
                "hasResidentKey": True,
                "hasUserVerification": True,
                "isUserVerified": True,
                "automaticPresenceSimulation": True,
            }
        },
    )
    return session, made["authenticatorId"]


@pytest.mark.lasts(15)
async def test_a_passkey_signs_in_and_proves(site: Site) -> None:
    """A passkey is created, named, used to sign in without password and code, used to re-authenticate, and deleted."""
    page = site.page
    base = site.base.replace("127.0.0.1", "localhost")
    site.bases.append(base)
    session, authenticator = await device(page)
    await site.link(password=True)
    await page.goto(f"{base}/login")
    await page.fill("#email", "owner@example.com")
    await page.fill("#password", PASSWORD)
    await page.click("button:has-text('Sign in'):not(:has-text('passkey'))")
    await page.wait_for_url(f"{base}/")

    await page.goto(f"{base}/account/passkeys/new")
    await page.fill("#name", "Ana's laptop")
    await page.click("button:has-text('Add a passkey')")
    await page.wait_for_url(f"{base}/account")
    assert "Ana's laptop" in await page.inner_text("main")
    (kept,) = (await session.send("WebAuthn.getCredentials", {"authenticatorId": authenticator}))["credentials"]
    assert kept["isResidentCredential"]
    # The device has one: to try again would not help.
    await page.goto(f"{base}/account/passkeys/new")
    await page.click("button:has-text('Add a passkey')")
    await page.locator(
        "[role=alert]:visible", has_text="This device already has a passkey for your account."
    ).wait_for()
    assert await page.locator("[role=alert]:visible").count() == 1

    await site.pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    async with asyncio.timeout(120):
        while "Confirm that it is you" not in await page.title():  # a session is cached for half a second
            await page.goto(f"{base}/account/password")
    await page.click("button:has-text('Use a passkey')")
    await page.wait_for_selector("#password")
    assert "/account/password" in page.url

    await page.goto(f"{base}/account")
    await page.click("details.who > summary")
    await page.click("button:has-text('Sign out')")
    # If the field itself can ask the authenticator, it responds without a click.
    await page.wait_for_url(f"{base}/")
    told = await site.pool.fetch("SELECT after FROM audit_log WHERE action = 'user.signed_in' ORDER BY id")
    assert '"passkey"' in told[-1]["after"]
    used = await site.pool.fetchrow("SELECT uses, used_at FROM passkeys")
    assert used is not None
    assert used["used_at"] is not None

    await page.goto(f"{base}/account")
    await page.click("button:has-text('Remove')")
    await page.wait_for_selector("text=The passkey is no longer valid here.")
    assert await site.pool.fetchval("SELECT count(*) FROM passkeys") == 0
    await page.click("details.who > summary")
    await page.click("button:has-text('Sign out')")
    await page.wait_for_selector(".summary")
    assert "This passkey is not registered here" in await page.inner_text(".summary")
    site.expect("403|422")
