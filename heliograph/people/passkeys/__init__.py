"""Passkeys (WebAuthn level 3): keys that a person's device keeps, and that prove who they are without a password.

`challenges` are what a device signs, `ceremony` creates and verifies what the browser's own JSON methods exchange,
`keeping` stores the public keys, and `checking` finds out whose passkey was presented.
"""
