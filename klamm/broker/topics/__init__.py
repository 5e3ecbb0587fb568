"""Creating, growing and deleting topics. A broker validates, places replicas and writes znodes; the controller acts on
these.
"""
