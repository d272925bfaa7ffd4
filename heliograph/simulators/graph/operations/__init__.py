"""What the stand-in for Meta is asked: sends, reads, templates, and how it refuses."""
