"""Data held about a person: complete disclosure, and erasure with a receipt.

A person is found under every spelling of a number, and every number and user id that, according to Meta, is theirs.
"""
