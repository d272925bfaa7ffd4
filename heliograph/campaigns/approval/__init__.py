"""A second person's approval of large campaigns, if the organization requires it.

`rule` says whether an approval is missing; `approving` grants it. The rule nobody may break: nothing is staged of a
campaign whose approval is missing.
"""
