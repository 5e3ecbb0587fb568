"""Where PySpark looks for data sources: packages named pyspark_* that have a `DefaultSource`.

PySpark imports all of them before it looks for any one, so this must never fail: beside an older PySpark there is no
`DefaultSource`, and other data sources work as before.
"""

import contextlib

with contextlib.suppress(ImportError):
    from klamm.spark.source import KlammDataSource as DefaultSource  # noqa: F401  # PySpark asks for it
