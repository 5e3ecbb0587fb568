"""A broker's ZooKeeper sessions, its registration, which gives the broker epoch, and the finalized features."""
