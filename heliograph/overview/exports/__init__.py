"""Exports: files that somebody requested, written by a worker and kept in the database until they fetch it.

The rule nobody may break: a file is handed to the person who requested it and to nobody else, as long as their role
allows them to see its content; and what they may not see in a list is never in the file.
"""
