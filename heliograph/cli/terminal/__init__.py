"""Building blocks of commands: options, tables, prompts, progress, an API client, exit statuses."""
