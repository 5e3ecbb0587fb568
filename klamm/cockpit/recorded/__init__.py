"""A recording as the source of pages."""
