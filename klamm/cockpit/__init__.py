"""`klamm cockpit`: a web page that shows what a cluster and its controller are doing.

A process of its own serves the page and reads from the brokers like any client.

| room or module | what it is |
|---|---|
| `source` | the data behind the page: `live` reads a cluster, `recorded` a recording |
| `pages` | one module with the API of each view; `page_api` is what these modules share |
| `server`, `safety`, `process` | the server, its access control, and the server as a process of `klamm up` |
| `static` | the page itself |
"""
