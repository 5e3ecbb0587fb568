"""Topics as Arrow batches and Spark DataFrames, without a connector jar.

If klamm is installed beside PySpark, `spark.read.format("klamm")` works by itself: PySpark finds the package
`pyspark_klamm`. Spark searches once per session. If klamm was installed later, call `klamm.spark.register(spark)`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Makes the format `klamm` known to a session, also to a session of Spark Connect.

    Raises ImportError for PySpark 3, and if Spark starts workers on this machine with a Python that lacks klamm.
    """
    import klamm.spark.pyspark_versions  # noqa: F401  # first, because its error says which PySpark klamm needs
    from klamm.spark.source import KlammDataSource
    from klamm.spark.worker_python import require_klamm

    require_klamm(spark)
    spark.dataSource.register(KlammDataSource)
