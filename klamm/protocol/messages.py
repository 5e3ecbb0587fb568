"""The one door to Kafka's messages: frames in, messages out, and the other way round, for every API and version.

Most message classes are kafka-python's; the inter-broker ones are made from our own schemas (`schemas/`). Hand-written
messages and codecs have Produce and Fetch, which carry the records (`produce.py`, `fetch.py`), OffsetCommit, which
every consumer sends all the time (`offset_commit.py`), and LeaderAndIsr, UpdateMetadata and StopReplica, which carry
the state of every partition (`leader_and_isr.py`, `update_metadata.py`, `stop_replica.py`). Everything is decoded
strictly (`strict.py`), requests and responses alike.

What must stay true:
- Nothing outside `klamm.protocol` imports kafka-python.
- A request or response that an API's classes construct carries its version: `response_class(key)(version=v, ...)`.
  A field that a version does not have reads as its default; a default list is shared, so it is never changed in place.
- Message classes are imported when they are first needed; `load_all` imports them at once (0.1 s), for processes that
  are about to fork.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any, NamedTuple

from klamm.protocol import (
    encoding_steps,
    fetch,
    leader_and_isr,
    offset_commit,
    produce,
    schemas,
    stop_replica,
    update_metadata,
)
from klamm.protocol.api_keys import ADVERTISED_MAX, ADVERTISED_MIN, FLEXIBLE_FROM, ApiKey
from klamm.protocol.library import message_module
from klamm.protocol.primitives import (
    Buffer,
    InvalidFrame,
    Steps,
    nullable_string,
    read_nullable_string,
    skip_tagged_fields,
)
from klamm.protocol.strict import MAX_ELEMENTS, Decoder, compile_decoder, compile_steps

__all__ = [
    "ADVERTISED_MAX",
    "ADVERTISED_MIN",
    "ApiKey",
    "InvalidFrame",
    "RequestHeader",
    "Steps",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_request_body_steps",
    "encode_response",
    "encode_response_steps",
    "load_all",
    "parse_request_header",
    "request_class",
    "request_steps",
    "response_class",
    "response_steps",
]

# A response of this size or more is decoded in steps.
LARGE_RESPONSE_BYTES = 16 * 1024

# A response is only decoded from a broker that we chose to ask, and of a size that we chose to accept.
RESPONSE_MAX_ELEMENTS = 10_000_000

# An encoder's scratch memory is kept between messages; after a message larger than this it is given back.
_SCRATCH_BYTES = 1024 * 1024

# Kafka defines no tagged field for headers yet.
_HEADER_MAX_TAGS = 100

_REQUEST_HEADER = struct.Struct(">hhi")
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_CORRELATION = struct.Struct(">i")
_API_KEYS: dict[int, ApiKey] = {int(key): key for key in ApiKey}
_OWN_CODECS: dict[ApiKey, ModuleType] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LEADER_AND_ISR: leader_and_isr,
    ApiKey.STOP_REPLICA: stop_replica,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.UPDATE_METADATA: update_metadata,
}
# They can hold the state of every partition.
_REQUESTS_IN_STEPS = (ApiKey.FETCH, ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA)
_RESPONSES_IN_STEPS = (ApiKey.FETCH, ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA)
_UNSUPPORTED_VERSION = b"\0\x23"

_LIBRARY = (
    "kafka.protocol.metadata",
    "kafka.protocol.producer",
    "kafka.protocol.consumer",
    "kafka.protocol.admin",
    "kafka.protocol.sasl",
)


class RequestHeader(NamedTuple):
    """What every request begins with; the body begins at byte `body_position` of the frame."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def request_header_version(api_key: ApiKey, api_version: int) -> int:
    """0 has no client id, 2 ends with tagged fields."""
    if api_key == ApiKey.CONTROLLED_SHUTDOWN and api_version == 0:
        return 0
    return 2 if api_version >= FLEXIBLE_FROM[api_key] else 1


def response_header_version(api_key: ApiKey, api_version: int) -> int:
    """1 ends with tagged fields. An ApiVersions response must be readable before the versions are known."""
    return 1 if api_version >= FLEXIBLE_FROM[api_key] and api_key != ApiKey.API_VERSIONS else 0


def parse_request_header(frame: Buffer) -> RequestHeader:
    """The header of a request. InvalidFrame for what is none, and for an API that Kafka 2.8 does not know.

    The version may be one that nobody supports: an ApiVersions request of any version must be answered.
    """
    try:
        number, api_version, correlation_id = _REQUEST_HEADER.unpack_from(frame)
        api_key = _API_KEYS.get(number)
        if api_key is None:
            raise InvalidFrame(f"unknown API {number}", 0, "api_key")
        if api_version < 0:
            raise InvalidFrame(f"version {api_version} of {api_key.message_name}", 2, "api_version")
        version = request_header_version(api_key, api_version)
        if version == 0:
            return RequestHeader(api_key, api_version, correlation_id, None, 8)
        # The client id keeps its two-byte length even in version 2.
        client_id, position = read_nullable_string(frame, 8)
        if version == 2:
            position = skip_tagged_fields(frame, position, [_HEADER_MAX_TAGS])
    except (struct.error, IndexError):
        raise InvalidFrame("the frame ends within the header", len(frame), "request header") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


# -- classes ----------------------------------------------------------------------------------------------------------


@cache
def _message_class(api_key: ApiKey, kind: str) -> Any:
    name = api_key.message_name + kind
    if api_key.message_name in schemas.APIS:
        return schemas.make_class(name)
    for module in _LIBRARY:
        found = getattr(message_module(module), name, None)
        if found is not None:
            return found
    raise LookupError(f"no message {name}")


def request_class(api_key: ApiKey) -> Any:
    """The class of an API's requests; the classes of its structs are its attributes, under their schema names."""
    own = _OWN_CODECS.get(api_key)
    return own.REQUEST_CLASS if own else _message_class(api_key, "Request")


def response_class(api_key: ApiKey) -> Any:
    """The class of an API's responses; the classes of its structs are its attributes, under their schema names."""
    own = _OWN_CODECS.get(api_key)
    return own.RESPONSE_CLASS if own else _message_class(api_key, "Response")


def load_all() -> None:
    """Imports every message class that is needed to speak the advertised APIs."""
    for api_key in ADVERTISED_MAX:
        request_class(api_key)
        response_class(api_key)


# -- bodies -----------------------------------------------------------------------------------------------------------


@cache
def _request_decoder(api_key: ApiKey, version: int) -> Decoder:
    _check_version(api_key, version)
    if api_key in _OWN_CODECS:
        decoder: Decoder = _OWN_CODECS[api_key].request_decoder(version)
        return decoder
    return compile_decoder(request_class(api_key), version, MAX_ELEMENTS, _surplus_bytes(api_key, version))


def _surplus_bytes(api_key: ApiKey, version: int) -> int:
    """How many bytes may follow a request.

    librdkafka (2.16 still) asks for all topics with three bytes too many: the place it had kept for a four-byte count.
    Kafka ignores what follows a request, so its users never noticed; `kcat -L` must work here too.
    """
    return 3 if api_key is ApiKey.METADATA and version >= FLEXIBLE_FROM[api_key] else 0


@cache
def _response_decoder(api_key: ApiKey, version: int) -> Decoder:
    _check_version(api_key, version)
    if api_key in _OWN_CODECS:
        decoder: Decoder = _OWN_CODECS[api_key].response_decoder(version)
        return decoder
    return compile_decoder(response_class(api_key), version, RESPONSE_MAX_ELEMENTS)


def _check_version(api_key: ApiKey, version: int) -> None:
    low, high = ADVERTISED_MIN.get(api_key, 0), ADVERTISED_MAX.get(api_key, -1)
    if not low <= version <= high:
        raise InvalidFrame(f"version {version} of {api_key.message_name}, supported are {low} to {high}", 2)


@cache
def _body_encoder(api_key: ApiKey, version: int, kind: str) -> Callable[[Any], Sequence[Buffer]]:
    """What makes bytes of a message; for kafka-python's classes, the encoder that the library compiles."""
    _check_version(api_key, version)
    own = _OWN_CODECS.get(api_key)
    if own is not None:
        return partial(own.encode_request if kind == "Request" else own.encode_response, version)

    buffers = message_module("kafka.protocol.schemas.fields.codecs").EncodeBufferPool
    schema = _message_class(api_key, kind)
    flexible = schema.flexible_version_q(version)
    encode_into = schema._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)

    def encode(message: Any) -> Sequence[Buffer]:
        with buffers.acquire() as out:
            encode_into(message, out)
            body: bytearray = out.buf[: out.pos]
            if len(out.buf) > _SCRATCH_BYTES:
                out.buf = bytearray(_SCRATCH_BYTES)
        return (body,)

    return encode


def decode_request(api_key: ApiKey, version: int, frame: Buffer, position: int) -> Any:
    """The request whose body begins at `position` of the frame. InvalidFrame if it is not exactly one."""
    return _request_decoder(api_key, version)(frame, position)


def request_steps(api_key: ApiKey, version: int, frame: Buffer, position: int) -> Steps[Any] | None:
    """As `decode_request`, in steps; None for an API whose requests are never large enough for that."""
    _check_version(api_key, version)
    if api_key in _OWN_CODECS and api_key not in _REQUESTS_IN_STEPS:
        return None
    return _request_steps_decoder(api_key, version)(frame, position)


@cache
def _request_steps_decoder(api_key: ApiKey, version: int) -> Callable[[Buffer, int], Steps[Any]]:
    if api_key in _OWN_CODECS:
        decoder: Callable[[Buffer, int], Steps[Any]] = _OWN_CODECS[api_key].request_steps(version)
        return decoder
    return compile_steps(request_class(api_key), version, MAX_ELEMENTS, _surplus_bytes(api_key, version))


def encode_request_body_steps(api_key: ApiKey, version: int, message: Any) -> Steps[Sequence[Buffer]] | None:
    """The body for `encode_request`, in steps; None for an API whose requests need none."""
    if api_key is not ApiKey.FETCH or not fetch.is_large(message):
        return None
    _check_version(api_key, version)
    return fetch.encode_request_steps(version, message)


def encode_request(
    api_key: ApiKey,
    version: int,
    correlation_id: int,
    client_id: str | None,
    message: Any,
    body: Sequence[Buffer] | None = None,
) -> list[Buffer]:
    """A whole request, size and header included, as buffers to be written one after another.

    `body` is the message's, where it has been encoded before.
    """
    header = bytearray(_REQUEST_HEADER.pack(api_key, version, correlation_id))
    header_version = request_header_version(api_key, version)
    if header_version > 0:
        header += nullable_string(client_id)
    if header_version == 2:
        header += b"\0"
    if body is None:
        body = _body_encoder(api_key, version, "Request")(message)
    size = len(header) + sum(map(len, body))
    return [_CORRELATION.pack(size) + header + body[0], *body[1:]]


def encode_response(api_key: ApiKey, version: int, correlation_id: int, message: Any) -> list[Buffer]:
    """A whole response, size and header included, as buffers to be written one after another."""
    return _with_response_header(api_key, version, correlation_id, _body_encoder(api_key, version, "Response")(message))


def encode_response_steps(
    api_key: ApiKey, version: int, correlation_id: int, message: Any
) -> Steps[list[Buffer]] | None:
    """As `encode_response`, in steps; None for a response that is not large enough for that."""
    if api_key is ApiKey.PRODUCE:
        return None
    _check_version(api_key, version)
    if api_key is ApiKey.FETCH:
        steps = fetch.encode_response_steps(version, message) if fetch.is_large(message) else None
    elif api_key not in _OWN_CODECS and encoding_steps.is_large(message, version):
        steps = encoding_steps.encode_steps(message, version)
    else:
        steps = None
    if steps is None:
        return None
    return _response_steps(api_key, version, correlation_id, steps)


def _response_steps(
    api_key: ApiKey, version: int, correlation_id: int, steps: Steps[Sequence[Buffer]]
) -> Steps[list[Buffer]]:
    body = yield from steps
    return _with_response_header(api_key, version, correlation_id, body)


def _with_response_header(api_key: ApiKey, version: int, correlation_id: int, body: Sequence[Buffer]) -> list[Buffer]:
    tagged = response_header_version(api_key, version)
    head = _SIZE_AND_CORRELATION.pack(4 + tagged + sum(map(len, body)), correlation_id)
    return [head + (b"\0" if tagged else b"") + body[0], *body[1:]]


def parse_correlation_id(frame: Buffer) -> int:
    """Which request a response answers. InvalidFrame when the frame is too short to say so."""
    if len(frame) < 4:
        raise InvalidFrame(f"a response of {len(frame)} bytes", 0, "correlation_id")
    correlation_id: int = _CORRELATION.unpack_from(frame)[0]
    return correlation_id


def decode_response(api_key: ApiKey, version: int, frame: Buffer) -> Any:
    """The message of a whole response frame (without its size). InvalidFrame if it is not exactly one.

    A broker that does not know our version of ApiVersions answers in version 0, with UNSUPPORTED_VERSION.
    """
    position = _response_body_position(api_key, version, frame)
    if api_key == ApiKey.API_VERSIONS and frame[position : position + 2] == _UNSUPPORTED_VERSION:
        version = 0
    return _response_decoder(api_key, version)(frame, position)


def response_steps(api_key: ApiKey, version: int, frame: Buffer) -> Steps[Any] | None:
    """As `decode_response`, in steps; None for a response that is not large enough for that."""
    if len(frame) < LARGE_RESPONSE_BYTES or (api_key in _OWN_CODECS and api_key not in _RESPONSES_IN_STEPS):
        return None
    return _response_steps_decoder(api_key, version)(frame, _response_body_position(api_key, version, frame))


@cache
def _response_steps_decoder(api_key: ApiKey, version: int) -> Callable[[Buffer, int], Steps[Any]]:
    _check_version(api_key, version)
    if api_key in _OWN_CODECS:
        decoder: Callable[[Buffer, int], Steps[Any]] = _OWN_CODECS[api_key].response_steps(version)
        return decoder
    return compile_steps(response_class(api_key), version, RESPONSE_MAX_ELEMENTS)


def _response_body_position(api_key: ApiKey, version: int, frame: Buffer) -> int:
    if response_header_version(api_key, version) == 0:
        return 4
    try:
        return skip_tagged_fields(frame, 4, [_HEADER_MAX_TAGS])
    except IndexError:
        raise InvalidFrame("the frame ends within the header", len(frame), "response header") from None
