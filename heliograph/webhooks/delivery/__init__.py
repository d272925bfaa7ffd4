"""From a claimed row to a signed POST and the interpretation of its answer."""
