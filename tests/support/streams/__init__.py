"""An application of Kafka Streams that counts words, and what it should have counted."""
