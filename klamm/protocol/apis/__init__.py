"""The messages of Kafka's APIs, a module for each API: the request, the response, and which versions there are.

What must stay true: a module is imported when its API is first needed, because a client needs few of them. `load_all`
imports all of them, for processes that are about to fork.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import Api, Size

# The APIs of brokers without ZooKeeper (KRaft). klamm knows their keys and has no messages for them.
_KRAFT = (
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.ENVELOPE,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.UNREGISTER_BROKER,
)
KEYS = tuple(key for key in ApiKey if key not in _KRAFT)
"""The APIs that have messages."""


@cache
def api_of(api_key: ApiKey) -> Api:
    """The versions and the size of an API. Raises LookupError for an API without messages."""
    api: Api = request_class(api_key).api
    return api


@cache
def request_class(api_key: ApiKey) -> Any:
    """The class of an API's requests; the classes of its structs are its attributes, under Kafka's names."""
    return _message_class(api_key, "Request")


@cache
def response_class(api_key: ApiKey) -> Any:
    """The class of an API's responses; the classes of its structs are its attributes, under Kafka's names."""
    return _message_class(api_key, "Response")


def _message_class(api_key: ApiKey, kind: str) -> Any:
    name = api_key.message_name + kind
    if api_key in _KRAFT:
        raise LookupError(f"no message {name}")
    return getattr(import_module(f"{__name__}.{api_key.name.lower()}"), name)


def load_all() -> None:
    """Imports the messages of all APIs."""
    for api_key in KEYS:
        request_class(api_key)


class _Advertised(Mapping[ApiKey, int]):
    """The highest or the lowest version of each API that a broker advertises, in the order of the keys."""

    def __init__(self, end: str) -> None:
        self._end = end

    def __getitem__(self, api_key: ApiKey) -> int:
        if api_key in _KRAFT:
            raise KeyError(api_key)
        version: int = getattr(api_of(api_key).versions, self._end)
        return version

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(KEYS)

    def __len__(self) -> int:
        return len(KEYS)


ADVERTISED_MAX: Mapping[ApiKey, int] = _Advertised("high")
ADVERTISED_MIN: Mapping[ApiKey, int] = _Advertised("low")


class _FlexibleFrom(dict[ApiKey, int]):
    """The first flexible version of each API (KIP-482), which decides its headers, too."""

    def __missing__(self, api_key: ApiKey) -> int:
        self[api_key] = 0 if api_key in _KRAFT else api_of(api_key).flexible.low
        return self[api_key]


FLEXIBLE_FROM = _FlexibleFrom()

# -- bounds -----------------------------------------------------------------------------------------------------------

SMALL_REQUEST_MAX_BYTES = 1024 * 1024
# Ten thousand partitions of topics with names of 249 characters, each in a topic of its own, take 2.9 MB in a Fetch.
LIST_REQUEST_MAX_BYTES = 8 * 1024 * 1024


def request_size_limit(socket_request_max_bytes: int) -> Callable[[int | None], int]:
    """Returns a function that gives the size limit of requests of an API, for a broker's `socket.request.max.bytes`.

    Its argument is the number in the frame's first two bytes, which is the API key of a request; None for a shorter
    frame.
    """
    of_size = {
        Size.SMALL: min(SMALL_REQUEST_MAX_BYTES, socket_request_max_bytes),
        Size.LIST: min(LIST_REQUEST_MAX_BYTES, socket_request_max_bytes),
        Size.WHOLE: socket_request_max_bytes,
        Size.STATE: socket_request_max_bytes,
    }
    limits: dict[int, int] = {}

    def limit(api_key: int | None) -> int:
        known = limits.get(api_key)  # type: ignore[arg-type]
        if known is None:
            key = next((key for key in KEYS if key == api_key), None)
            if key is None:
                return of_size[Size.SMALL]
            known = limits[int(key)] = of_size[api_of(key).size]
        return known

    return limit
