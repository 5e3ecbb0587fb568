"""`klamm cockpit`: a web page that shows what a cluster and its controller are doing.

The page is served by a process of its own, which reads from the brokers as any client does.
"""
