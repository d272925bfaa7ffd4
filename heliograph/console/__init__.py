"""The operators' console, under `/console`: pages for the people who run the installation.

A realm of its own (`pages.realms`): its accounts, cookie and sessions give no access to the dashboard, nor do those
of the dashboard give access here. As there, a page holds no rules and no SQL: it calls the same functions as the
command line.
"""
