"""HTTP/1.1 over TCP in both directions: reading and writing (pure), the client for webhooks, suppliers and Meta, and
the server."""
