"""What people look at before, during and after a campaign: who would get it, who did and who did not.

The rule nobody may break: a view decides as staging does, with the same functions, and changes no campaign.
"""
