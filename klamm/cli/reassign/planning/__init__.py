"""From a goal to a plan of moves. Pure: `planner` takes a `model` of a cluster, and the other modules are its steps."""
