"""`klamm pipeline`: jobs on Spark. Nothing here imports PySpark before a job begins."""
