"""Real klamm clusters in tests: `Cluster`, and a pytest plugin with the fixture `klamm_cluster`.

See docs/testing.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.protocol.error_codes import ErrorCode, KafkaError
    from klamm.testing.async_cluster import AsyncCluster
    from klamm.testing.cluster import Cluster
    from klamm.testing.cluster_errors import ClusterEnded, ClusterError, NotInTime
    from klamm.testing.facts import Broker
    from klamm.testing.helper import Helper

__all__ = [
    "AsyncCluster",
    "Broker",
    "Cluster",
    "ClusterEnded",
    "ClusterError",
    "ErrorCode",
    "Helper",
    "KafkaError",
    "NotInTime",
]

_MODULES = {
    "AsyncCluster": "klamm.testing.async_cluster",
    "Broker": "klamm.testing.facts",
    "Cluster": "klamm.testing.cluster",
    "ClusterEnded": "klamm.testing.cluster_errors",
    "ClusterError": "klamm.testing.cluster_errors",
    "ErrorCode": "klamm.protocol.error_codes",
    "Helper": "klamm.testing.helper",
    "KafkaError": "klamm.protocol.error_codes",
    "NotInTime": "klamm.testing.cluster_errors",
}


def __getattr__(name: str) -> Any:
    # Imported at first use: pytest imports this package with the plugin in every run, even if no test uses it.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
