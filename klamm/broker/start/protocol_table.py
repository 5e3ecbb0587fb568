"""The table of supported APIs in `docs/protocol.md`, made from the handlers' registrations.

`python -m klamm.broker.start.protocol_table > docs/protocol.md` writes it again.
"""

from collections.abc import Mapping

from klamm.broker.requests.api import Api
from klamm.protocol.messages import ADVERTISED_MAX, ApiKey

_HEAD = """\
# Protocol support

Every API that a broker of Apache Kafka 2.8.2 advertises, two of later Kafkas, and the versions of each that klamm
serves. What is listed here is what klamm answers to ApiVersions; a request of another API or version closes its
connection, as in Kafka. The last column is what a client must be authorized for. Made by
`python -m klamm.broker.start.protocol_table > docs/protocol.md`.

| key | API | klamm | Kafka 2.8.2 | needs |
|---:|---|---|---|---|
"""

# The APIs that Kafka 2.8.2 does not have. Only tools send these requests, not brokers.
_LATER = {
    ApiKey.DESCRIBE_TRANSACTIONS: "none; 3.0 has 0",
    ApiKey.LIST_TRANSACTIONS: "none; 3.8 has 0-1",
}


def render(apis: Mapping[ApiKey, Api]) -> str:
    """The document, in Markdown, for the APIs that are served."""
    return _HEAD + "".join(_row(key, apis.get(key)) for key in ADVERTISED_MAX)


def _row(key: ApiKey, api: Api | None) -> str:
    served, needs = "", ""
    if api is not None:
        served = _range(api.min_version, api.max_version)
        if api.operation is not None and api.resource_type is not None:
            needs = f"{_words(api.operation.name)} on {_words(api.resource_type.name)}"
    in_kafka = _LATER.get(key) or _range(0, ADVERTISED_MAX[key])
    return f"| {int(key)} | {key.message_name} | {served} | {in_kafka} | {needs} |\n"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _words(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


if __name__ == "__main__":
    from klamm.broker.handlers import APIS

    print(render(APIS), end="")  # noqa: T201  # make docs calls it
