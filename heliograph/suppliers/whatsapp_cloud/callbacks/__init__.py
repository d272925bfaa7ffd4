"""What Meta says by webhook: signature, items, what users wrote, news of templates, numbers and accounts."""
