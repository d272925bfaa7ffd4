"""Mails to people: an outbox that is written with what a mail tells of, and the part of a worker that empties it.

`outbox` is the table and its rules; `work` sends. What a mail says stands with what it tells of (`people/mailing`).
"""
