"""What commands are made of: options, tables and questions on a terminal, progress, the API's client, how they end."""
