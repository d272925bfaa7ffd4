"""From a request, or a step of a campaign, to a committed message; and back, while no supplier has it."""
