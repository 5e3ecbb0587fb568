"""Creating, growing and deleting topics. A broker validates requests, places replicas and writes znodes, and the
controller acts on the znodes.
"""
