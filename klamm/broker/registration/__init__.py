"""A broker and ZooKeeper: one session after another, the registration that gives the broker its epoch, and the
finalized features.
"""
