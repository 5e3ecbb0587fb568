"""`klamm reassign` and `klamm brokers decommission`: from a goal to a plan, and from a plan to the end of its moves.

| module | content |
|---|---|
| `command`, `generating`, `decommissioning` | the command lines |
| `model` | clusters, placements, moves and plans as values. Pure |
| `goals`, `planner` | what is asked for, and the steps to a plan. Pure |
| `layout`, `shares`, `forced`, `balance`, `leaders`, `log_dirs`, `kafka_placement` | the steps. Pure |
| `minimum` | the fewest bytes that any plan for a goal copies. Pure |
| `report`, `views` | what is printed. Pure |
| `json_form`, `load_file` | the files of plans and of loads. Pure |
| `steps`, `throttles` | what an execution decides at each look, and which configs throttle it. Pure |
| `access` | the two ways to a cluster: the brokers, and the znodes |
| `execution`, `operations` | an execution, and the work of the other commands |
| `running`, `state_file` | an execution in this process, and its record on disk |
"""
