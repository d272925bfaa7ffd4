"""Passkeys (WebAuthn level 3): keys that a person's device keeps, and that prove who they are without a password.

`ceremony` makes and checks what the browser's own JSON methods exchange; `keeping` stores the public keys.
"""
