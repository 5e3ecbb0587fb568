"""Where PySpark looks for data sources: packages named pyspark_* that have a `DefaultSource`."""

from klamm.spark.source import KlammDataSource as DefaultSource

__all__ = ["DefaultSource"]
