"""What Meta keeps of us, as it was last read: accounts, numbers, templates; and how they are set up."""
