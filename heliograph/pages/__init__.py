"""The kit of web pages: routes, sessions' door, forms, templates, static files, languages. It knows no screen.

`serving/application.py` is where to begin; screens are in `dashboard/`.
"""
