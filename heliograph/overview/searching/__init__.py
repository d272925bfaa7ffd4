"""How operators find what they are asked about: what an id or a name stands for, and messages of all organizations."""
