"""Views for people before, during and after a campaign: who would get it, who did and who did not.

The rule nobody may break: a view decides like staging, with the same functions, and changes no campaign.
"""
