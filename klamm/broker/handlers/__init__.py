"""The APIs that a broker serves: one module per API, each registering itself in `klamm.broker.requests.registry`."""

from importlib import import_module
from pkgutil import iter_modules

from klamm.broker.requests.registry import registered

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")

# Every API, by ascending key; complete, because all modules of this package have been imported above.
APIS = registered()
