"""The errors of batch queries of a client of Spark Connect, as it prints them. `test_readable_errors.py` runs this.

Arguments: the server's URL, and the readers' options as JSON. Prints the errors as JSON.
"""

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import klamm.spark


def main(url: str, options: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    klamm.spark.register(spark)
    errors = []
    for each in json.loads(options):
        try:
            spark.read.format("klamm").options(**each).load().collect()
        except PySparkException as error:
            errors.append(str(error))
    print(json.dumps(errors))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
