"""Retention: deleting text, metadata, evidence and keys after their time.

`rules` defines what is deleted when, `forgetting` applies it; `shorter` erases texts, and `removing` removes messages,
for organizations with a shorter retention; `turns` divides the work among those, and `shortening` tells what choosing
one deletes. `partitioned_tables` shows what is kept and what is dropped next.
"""
