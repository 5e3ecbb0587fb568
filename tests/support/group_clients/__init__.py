"""Consumers of several clients, in processes of their own, as members of groups."""
