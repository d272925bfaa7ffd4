"""From a request, or a step of a campaign, to a committed message; and withdrawing it before Meta has it."""
