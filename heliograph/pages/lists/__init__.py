"""Lists: which columns a person wants to see of one, and looks that go further back."""
