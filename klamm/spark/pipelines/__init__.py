"""Pipelines on Spark: topics to files (`archive`), back into topics (`replay`), and an example (`transform`)."""
