"""The controller's way to the brokers: one batch of requests for each event, and one queue and connection for each
broker.
"""
