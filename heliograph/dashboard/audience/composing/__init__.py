"""Composing a campaign: its form (`form`), how the form is interpreted (`meaning`), what is shown next to it
(`offers`), its drafts (`drafts`), and the page on which it is previewed, tried and created (`new`).
"""
