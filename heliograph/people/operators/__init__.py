"""Operators: the people who run the installation, what each role of theirs may do, and their sessions in the console.

An operator is a user with a row of its own beside memberships, so password, authenticator app and passkeys are those of
the person; sessions and links are of the console alone.
"""
