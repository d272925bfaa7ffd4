"""What the forms of both apps have in common: parsing numbers as people type them."""
