"""An organization's dashboard: one room per group of the navigation rail, one file per screen. Start at `table.py`.

Each room has its routes in `routes.py`, its templates in `templates/` under the room's name, and its Portuguese in
`pages/locale/pt/`. A screen holds no rules and no SQL: it reads and writes through functions that the API or the
command line also calls.
"""
