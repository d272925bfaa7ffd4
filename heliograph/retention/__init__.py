"""Retention: deleting text, metadata, evidence and keys after their time.

`rules` says what goes when, `forgetting` applies it, `shorter` erases texts for organizations that keep them for less;
`standing` tells what is kept and what goes next.
"""
