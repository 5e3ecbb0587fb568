"""Connections: frames on streams, the server side with its queues and budgets of memory (`server`), the wire client
(`client`), TLS and SASL of the client, and small HTTP. Nothing here knows what a request means.
"""
