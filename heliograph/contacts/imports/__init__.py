"""Uploaded files: kept in the database, checked, imported by a worker, corrected and undone.

`drafts.py` is the record and its states, `survey.py` what a file would do, `running.py` the worker's part,
`corrections.py` its rejected rows. Reading and writing rows is done by `contacts.importing`, which the command line
uses, too. The rule nobody may break: an import's progress is committed with what it wrote, so that nobody is left out
or counted twice when it continues after a kill.
"""
