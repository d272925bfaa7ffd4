"""Regions of pages that renew themselves: made once for all who see the same, as often as the process can bear."""
