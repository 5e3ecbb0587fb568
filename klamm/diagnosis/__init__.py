"""What is wrong with a cluster, why, and what to do about it: one knowledge for all commands and the cockpit.

`cluster_view` and `cluster_facts` are looks at a cluster as plain values. What is made of them is pure.
"""
