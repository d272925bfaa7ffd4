"""The guard: what it found suspicious and holds, and what each organization decided about that."""
