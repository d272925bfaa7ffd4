"""From a claimed row to a signed POST and what its answer means."""
