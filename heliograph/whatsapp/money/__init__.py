"""What messages cost: amounts, rates, and the wallet of an organization."""
