"""Answering requests: connections and their limits, exchanges, an ASGI application behind them, listening sockets."""
