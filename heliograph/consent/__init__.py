"""Consent: who may be written to. Opt-outs on any channel and the keywords for them; recipients that campaigns skipped,
for that or another reason.
"""
