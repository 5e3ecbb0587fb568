"""How a tool reaches a cluster: over the wire (`clients`), through ZooKeeper (`zookeeper`), and over the HTTP ports of
klamm's brokers (`http_reading`, `controller`). Commands and the cockpit stand on it; it prints nothing.
"""
