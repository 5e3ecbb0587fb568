"""Finds the problems of a cluster, their reasons and remedies, for all commands and the cockpit.

`cluster_view` and `cluster_facts` read a cluster as plain values. The modules that draw conclusions from these values
are pure.
"""
