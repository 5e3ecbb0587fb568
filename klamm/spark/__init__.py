"""Topics as Arrow batches and Spark DataFrames, without a connector jar."""
