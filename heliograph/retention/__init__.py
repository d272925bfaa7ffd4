"""Retention: deleting text, metadata, evidence and keys after their time.

`rules` defines what is deleted when, `forgetting` applies it; `shorter` erases texts, and `removing` removes messages,
for organizations with a shorter retention; `turns` gives each of those its turn, and `shortening` says what choosing
one deletes. `standing` shows what is kept and what is deleted next.
"""
