"""A campaign that is being composed: its form (`form`), what that means (`meaning`), what stands beside it (`offers`),
its drafts (`drafts`), and the page on which it is looked at, tried and made (`new`).
"""
