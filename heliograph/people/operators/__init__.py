"""Operators: the people who run the installation, what each of their roles may do, and their sessions in the console.

An operator is a user with a row in `operators`, independent of memberships. Password, authenticator app and passkeys
are the person's own; sessions and links are valid in the console only.
"""
