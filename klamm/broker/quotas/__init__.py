"""The quotas of clients: bytes produced and fetched, the broker's time, partitions created and deleted (KIP-13, KIP-55,
KIP-124, KIP-219, KIP-599).

| module | content |
|---|---|
| `bounds` | which quota holds for a client: eight levels of users and clients. Pure |
| `sensors` | what is known of each client, bounded in number. Pure |
| `rate_quota`, `mutation_quota` | a quota of one type: recorded values, and for how long a client is throttled. Pure |
| `client_quotas` | the four types together, as one broker has them, and their metrics |
| `request_quota` | the quotas of one request, and the time that it takes |
| `filters`, `admin` | DescribeClientQuotas and AlterClientQuotas: what they mean (pure), and the znodes |
"""
