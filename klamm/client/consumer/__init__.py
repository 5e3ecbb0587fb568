"""Reading records: fetches of many partitions, offsets of partitions and of groups, and consumers with and without a
group.
"""
