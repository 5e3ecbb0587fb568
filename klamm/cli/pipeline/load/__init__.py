"""`klamm pipeline load`: what was counted on Spark as figures, as text, as HTML, and as a load for `klamm reassign`."""
