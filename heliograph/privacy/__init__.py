"""What is kept of a person: shown whole to whoever asks for it, and erased with a receipt.

A person is meant under every spelling of a number, and every number and user id that Meta says is theirs.
"""
