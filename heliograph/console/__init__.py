"""The operator's console, under `/console`: the pages of those who run the installation.

A realm of its own (`pages.realms`): its operators, cookie and sessions open nothing in the dashboard, and those of
the dashboard open nothing here. As there, a page holds no rule and no SQL: what it does, the command line does by the
same function.
"""
