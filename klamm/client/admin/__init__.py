"""What operators ask of a cluster and change in it: one module for each kind of thing, as in Kafka's Admin."""
