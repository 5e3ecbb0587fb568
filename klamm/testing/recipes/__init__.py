"""The support for the recipes of docs/recipes.md: fixtures for pytest, and clients behind one interface.

A project that takes a recipe has one line in its conftest.py, `pytest_plugins = ["klamm.testing.recipes.plugin"]`. The
client under test is confluent-kafka, aiokafka, or a class of the project's own (`contract.Client`).

Importing this package imports no client.
"""

from klamm.testing.recipes.contract import TIMEOUT_S, Client, Failed

__all__ = ["TIMEOUT_S", "Client", "Failed"]
