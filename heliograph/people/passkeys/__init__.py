"""Passkeys (WebAuthn level 3): keys on a person's device that authenticate them without a password.

`challenges` are what a device signs, `ceremony` creates and verifies what the browser's own JSON methods exchange,
`keeping` stores the public keys, and `checking` finds out whose passkey was presented.
"""
