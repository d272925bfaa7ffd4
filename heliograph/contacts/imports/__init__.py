"""Files that somebody uploads: kept in the database, looked through, imported by a worker, mended and undone.

`drafts.py` is the record and its states, `dry_run.py` what a file would do, `running.py` what a worker does with it,
`mending.py` its rejected rows. How rows are read and written is `contacts.importing`'s, which the command line calls
too. The rule nobody may break: how far an import has come is committed with what it wrote, so that whoever goes on
after a kill leaves nobody out and counts nobody twice.
"""
