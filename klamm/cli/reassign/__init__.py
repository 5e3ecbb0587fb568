"""`klamm reassign` and `klamm brokers decommission`: make a plan for a goal, and carry a plan out.

| module | content |
|---|---|
| `command`, `generating`, `decommissioning` | the command lines |
| `model` | clusters, placements, moves and plans as values. Pure |
| `goals`, `planner` | the goal of a plan, and the order of the steps to it. Pure |
| `layout`, `shares`, `forced`, `balance`, `leaders`, `log_dirs`, `kafka_placement` | the steps. Pure |
| `minimum` | the fewest bytes that any plan for a goal copies. Pure |
| `report`, `views` | what is printed. Pure |
| `json_form`, `load_file` | the files of plans and of loads. Pure |
| `steps`, `throttles` | the decisions of an execution at each look, and the configs that throttle it. Pure |
| `access` | the two ways to a cluster: the brokers, and the znodes |
| `execution`, `operations` | an execution, and the work of the other commands |
| `running`, `state_file` | an execution in this process, and its record on disk |
"""
