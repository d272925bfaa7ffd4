"""Retention: deleting text, metadata, evidence and keys after their time.

`rules` says what goes when, `forgetting` applies it; `shorter` erases texts, and `removing` removes messages, for
organizations that keep them for less; `turns` gives each of those its turn. `standing` tells what is kept and what goes
next.
"""
