"""The shapes that operations share: fields, pages of lists, and refusals in their envelope."""
