"""HTTP/1.1 over TCP, both ways: what is read and written (pure), the client for webhooks, and the server below."""
