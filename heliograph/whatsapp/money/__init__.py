"""The cost of messages: amounts, rates, and the wallet of an organization."""
