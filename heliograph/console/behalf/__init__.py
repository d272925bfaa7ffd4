"""What an operator does in an organization's stead, as its own people do it on their pages."""
