"""A live cluster as the source of pages."""
