"""Look-up suppliers: who says to which network a number belongs, what was asked of them, and at what cost."""
