"""A second person's approval of campaigns to many, where the organization asks for it.

`rule` says whether one is missing; `approving` gives it. The rule nobody may break: nothing is staged of a campaign
that is missing one.
"""
