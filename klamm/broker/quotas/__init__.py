"""The quotas of clients: bytes produced and fetched, the broker's time, partitions created and deleted (KIP-13, KIP-55,
KIP-124, KIP-219, KIP-599).

| module | content |
|---|---|
| `bounds` | the quota that holds for a client: eight levels of users and clients. Pure |
| `sensors` | the recorded values of each client, bounded in number. Pure |
| `rate_quota`, `mutation_quota` | a quota of one type: recorded values and throttle times. Pure |
| `client_quotas` | the four types together on one broker, and their metrics |
| `request_quota` | the quotas of one request, and its time |
| `filters`, `admin` | DescribeClientQuotas and AlterClientQuotas: their meaning (pure), and the znodes |
"""
