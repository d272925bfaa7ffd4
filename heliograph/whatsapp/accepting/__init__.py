"""From a request, or a step of a campaign, to a committed message; and its withdrawal while Meta does not have it."""
