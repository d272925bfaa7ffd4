"""The web framework of both apps: routes, sessions, forms, templates, static files, languages. It knows no screens.

`serving/application.py` is where to begin; screens are in `dashboard/`.
"""
