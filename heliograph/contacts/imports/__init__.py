"""Uploaded files: kept in the database, checked, imported by a worker, corrected and undone.

`drafts.py` has the record and its states, `survey.py` says what a file would do, `running.py` does the worker's part,
`corrections.py` handles rejected rows. Rows are read and written by `contacts.importing`, which the command line also
uses. The rule nobody may break: an import's progress is committed with the rows it wrote, so that nobody is left out or
counted twice when it continues after a kill.
"""
