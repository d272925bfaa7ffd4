"""What forms of both apps have in common: figures as people type them."""
