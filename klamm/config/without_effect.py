"""The reasons why a key of Kafka's configuration is accepted and changes nothing, as docs/unsupported.md gives them.

A key that silently does nothing is worse than a key that is refused. Only a key's `without_effect` says that it does
nothing, and the document's table is generated from it.
"""

ONE_LOOP = "a broker is one loop in one process: it has no pools of threads whose size could be set"
NO_PURGE = "a completed operation leaves its purgatory at once, so there is nothing to purge"
JAVA_REPORTERS = "names Java classes; metrics are read over HTTP instead (`klamm.metrics.port`)"
COUNTERS = "metrics are counters and gauges, of which the monitoring system makes rates in windows of its own"
ONE_FORMAT = "records have one format (version 2); clients that need an older one are refused"
NO_LONGER_READ = "Kafka 2.8 knows the key and does not read it either"
JAVA_SECURITY = "security: names a class or an algorithm of Java"
TLS = "security: TLS comes later; a broker does not start with a listener that needs it"
SASL = "security: logins (SASL) come later; a broker does not start with a listener that needs them"
TOKENS = "security: delegation tokens come with SASL"
PASSWORDS = "security: stored passwords come with TLS and SASL"
SECURITY = "security comes later"
CLEANER_WINDOWS = "the cleaner reads a log in windows of 1 MB, which grow where a batch is larger"
