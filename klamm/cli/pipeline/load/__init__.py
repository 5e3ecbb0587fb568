"""`klamm pipeline load`: shows what Spark has counted as figures, text and HTML, and as a load for `klamm reassign`."""
