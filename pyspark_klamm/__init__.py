"""Makes `format("klamm")` known to PySpark, which looks for data sources in packages named pyspark_* for a
`DefaultSource`.

PySpark imports all these packages before it looks for any one of them, so this import must never fail: with an older
PySpark the package has no `DefaultSource`, and other data sources work as before.
"""

import contextlib

with contextlib.suppress(ImportError):
    from klamm.spark.source import KlammDataSource as DefaultSource  # noqa: F401  # PySpark asks for it
