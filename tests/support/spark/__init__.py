"""What the tests of klamm.spark share, and the programs that have a Spark session of their own."""
