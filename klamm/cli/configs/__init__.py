"""`klamm configs`: kafka-configs' work, over the wire protocol or with --zookeeper through the znodes.

| module | content |
|---|---|
| `entities` | which entity the options name. Pure |
| `changes` | --add-config and --delete-config, and what they change. Pure |
| `views` | descriptions as Kafka's lines and as JSON. Pure |
| `over_brokers`, `over_znodes` | the two ways to the configurations, with the same four methods |
| `commands` | `describe` and `alter` |
"""
