"""The dashboard of an organization: a room a group of the rail, a file a screen. `table.py` is where to begin.

Each room has its addresses in `routes.py`, its templates in `templates/` under the room's name, and its Portuguese in
`pages/locale/pt/`. A screen holds no rule and no SQL: what it reads and writes are functions that the API or the
command line calls too.
"""
