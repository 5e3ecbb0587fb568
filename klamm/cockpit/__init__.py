"""`klamm cockpit`: a web page that shows what a cluster and its controller are doing.

The page is served by a process of its own, which reads from the brokers as any client does.

| room or module | what it is |
|---|---|
| `source` | what pages are shown from: `live` reads a cluster, `recorded` a recording |
| `pages` | one module for each view: what its script asks for; `page_api` is what they share |
| `server`, `safety`, `process` | the server of the page, who may see it, and the server as a process of `klamm up` |
| `static` | the page itself |
"""
