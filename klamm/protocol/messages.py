"""The only entry point to Kafka's messages: decodes and encodes frames of every API and version.

Messages are written in the notation of `schema.py`, in a module for each API (`apis/`); `compiler/` makes the codecs,
when they are first needed. Requests and responses are decoded strictly, with one exception: bytes after a request are
ignored, as in Kafka, because clients send some. librdkafka (up to 2.16 at least) sends three after a Metadata request
for all topics, kafka-go one after DescribeAcls version 2.

What must stay true:
- A message does not have a version; the caller names the version when it encodes the message.
- An encoder that fails raises `UnencodableMessage`, which names the field, and nothing else.
- A request is decoded, and a response encoded, only in the versions that a broker advertises. A client may encode
  requests and decode responses in any version that the messages know.
"""

import contextlib
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from klamm.base.slices import Steps, in_one_go
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis import (
    ADVERTISED_MAX,
    ADVERTISED_MIN,
    FLEXIBLE_FROM,
    api_of,
    load_all,
    request_class,
    request_size_limit,
    response_class,
)
from klamm.protocol.compiler import counters, decoders, encoders
from klamm.protocol.encode_errors import UnencodableMessage, unencodable
from klamm.protocol.primitives import (
    MAX_TAGGED_FIELDS,
    Buffer,
    InvalidFrame,
    nullable_string,
    read_nullable_string,
    skip_tagged_fields,
)
from klamm.protocol.schema import Api, Size, Versions

__all__ = [
    "ADVERTISED_MAX",
    "ADVERTISED_MIN",
    "ApiKey",
    "InvalidFrame",
    "RequestHeader",
    "Steps",
    "UnencodableMessage",
    "count_errors_steps",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_request_body_steps",
    "encode_response",
    "encode_response_steps",
    "error_counter",
    "load_all",
    "parse_request_header",
    "request_class",
    "request_size_limit",
    "request_steps",
    "response_class",
    "response_steps",
]

# The most elements in all arrays of a request together, by size class. The states of 100,000 partitions, with the ids
# of their replicas, have up to 5,000,000.
MAX_ELEMENTS = {Size.SMALL: 10_000, Size.LIST: 100_000, Size.WHOLE: 100_000, Size.STATE: 5_000_000}
# A response of this size or more is decoded in steps.
LARGE_RESPONSE_BYTES = 16 * 1024

# A response comes only from a broker that this client called, and is no larger than this client accepts.
RESPONSE_MAX_ELEMENTS = 10_000_000

_REQUEST_HEADER = struct.Struct(">hhi")
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_CORRELATION = struct.Struct(">i")
_API_KEYS: dict[int, ApiKey] = {int(key): key for key in ApiKey}
_UNSUPPORTED_VERSION = b"\0\x23"


class RequestHeader(NamedTuple):
    """The header of every request. The body begins at byte `body_position` of the frame."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def request_header_version(api_key: ApiKey, api_version: int) -> int:
    """Header version 0 has no client id; version 2 ends with tagged fields."""
    if api_key == ApiKey.CONTROLLED_SHUTDOWN and api_version == 0:
        return 0
    return 2 if api_version >= FLEXIBLE_FROM[api_key] else 1


def response_header_version(api_key: ApiKey, api_version: int) -> int:
    """Header version 1 ends with tagged fields. ApiVersions responses have version 0, which every client can read."""
    return 1 if api_version >= FLEXIBLE_FROM[api_key] and api_key != ApiKey.API_VERSIONS else 0


def parse_request_header(frame: Buffer) -> RequestHeader:
    """The header of a request. Raises InvalidFrame for a malformed header, or an API that Kafka 2.8 does not know.

    The version need not be supported: an ApiVersions request of any version must be answered.
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
            position = skip_tagged_fields(frame, position, [MAX_TAGGED_FIELDS])
    except (struct.error, IndexError):
        raise InvalidFrame("the frame ends within the header", len(frame), "request header") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


# -- bodies -----------------------------------------------------------------------------------------------------------


@cache
def _request_decoder(api_key: ApiKey, version: int) -> decoders.Decoder:
    max_elements = MAX_ELEMENTS[_api(api_key).size]
    return decoders.compile_decoder(*_served(request_class, api_key, version), max_elements, has_end=False)


@cache
def _request_decoder_in_steps(api_key: ApiKey, version: int) -> decoders.DecoderInSteps:
    max_elements = MAX_ELEMENTS[_api(api_key).size]
    return decoders.compile_decoder_in_steps(*_served(request_class, api_key, version), max_elements, has_end=False)


@cache
def _response_decoder(api_key: ApiKey, version: int) -> decoders.Decoder:
    return decoders.compile_decoder(*_known(response_class, api_key, version), RESPONSE_MAX_ELEMENTS)


@cache
def _response_decoder_in_steps(api_key: ApiKey, version: int) -> decoders.DecoderInSteps:
    return decoders.compile_decoder_in_steps(*_known(response_class, api_key, version), RESPONSE_MAX_ELEMENTS)


@cache
def _request_encoder(api_key: ApiKey, version: int) -> encoders.Encoder:
    return encoders.compile_encoder(*_known(request_class, api_key, version))


@cache
def _request_encoder_in_steps(api_key: ApiKey, version: int) -> encoders.EncoderInSteps:
    return encoders.compile_encoder_in_steps(*_known(request_class, api_key, version))


@cache
def _response_encoder(api_key: ApiKey, version: int) -> encoders.ResponseEncoder:
    return encoders.compile_response_encoder(*_served(response_class, api_key, version))


@cache
def _response_encoder_in_steps(api_key: ApiKey, version: int) -> encoders.EncoderInSteps:
    return encoders.compile_encoder_in_steps(*_served(response_class, api_key, version))


@cache
def _error_counter_in_steps(api_key: ApiKey) -> counters.ErrorCounterInSteps:
    return counters.compile_error_counter_in_steps(response_class(api_key))


def _served(class_of: Callable[[ApiKey], Any], api_key: ApiKey, version: int) -> tuple[Any, int, bool]:
    """The class, the version, and whether it is flexible, of a message that brokers understand."""
    _check_version(api_key, version, _api(api_key).versions)
    return class_of(api_key), version, _is_flexible(api_key, version)


def _known(class_of: Callable[[ApiKey], Any], api_key: ApiKey, version: int) -> tuple[Any, int, bool]:
    """Like `_served`, for a message that clients understand."""
    _check_version(api_key, version, _api(api_key).known)
    return class_of(api_key), version, _is_flexible(api_key, version)


def _is_flexible(api_key: ApiKey, version: int) -> bool:
    return version >= FLEXIBLE_FROM[api_key]


def _api(api_key: ApiKey) -> Api:
    try:
        return api_of(api_key)
    except LookupError:
        raise InvalidFrame(f"{api_key.message_name} is not supported", 0) from None


def _check_version(api_key: ApiKey, version: int, versions: Versions) -> None:
    if version not in versions:
        raise InvalidFrame(f"version {version} of {api_key.message_name}, supported are {versions}", 2)


def decode_request(api_key: ApiKey, version: int, frame: Buffer, position: int) -> Any:
    """The request whose body begins at `position` of the frame. InvalidFrame if the frame does not begin with one."""
    return _request_decoder(api_key, version)(frame, position)


def request_steps(api_key: ApiKey, version: int, frame: Buffer, position: int) -> Steps[Any]:
    """Like `decode_request`, in steps. A request with records has few steps, because records take no time."""
    return _request_decoder_in_steps(api_key, version)(frame, position)


def encode_request_body_steps(api_key: ApiKey, version: int, message: Any) -> Steps[Sequence[Buffer]] | None:
    """The body for `encode_request`, in steps; None for a request that is too small for steps."""
    return _large_body_steps(request_class, _request_encoder_in_steps, api_key, version, message)


def encode_request(
    api_key: ApiKey,
    version: int,
    correlation_id: int,
    client_id: str | None,
    message: Any,
    body: Sequence[Buffer] | None = None,
) -> list[Buffer]:
    """A whole request, size and header included, as buffers to be written one after another.

    `body` is the message's encoded body, if it was encoded before.
    """
    header = bytearray(_REQUEST_HEADER.pack(api_key, version, correlation_id))
    header_version = request_header_version(api_key, version)
    if header_version > 0:
        header += nullable_string(client_id)
    if header_version == 2:
        header += b"\0"
    if body is None:
        encode = _request_encoder(api_key, version)
        try:
            body = encode(message)
        except Exception as error:
            raise _unencodable(request_class(api_key), api_key, version, message, error) from error
    size = len(header) + sum(map(len, body))
    return [_CORRELATION.pack(size) + header + body[0], *body[1:]]


def encode_response(
    api_key: ApiKey, version: int, correlation_id: int, message: Any, codes: list[int] | None = None
) -> list[Buffer]:
    """A whole response, size and header included, as buffers to be written one after another. Its error codes are
    appended to `codes`; 0 if its class has no error code."""
    encode = _response_encoder(api_key, version)
    if codes is None:
        codes = []
    try:
        body = encode(message, codes)
    except Exception as error:
        _take_back(encode, message, codes)
        raise _unencodable(response_class(api_key), api_key, version, message, error) from error
    return _with_response_header(api_key, version, correlation_id, body)


def _take_back(encode: encoders.ResponseEncoder, message: Any, codes: list[int]) -> None:
    """Removes the codes that a failed encoding has appended. The encoding is repeated to find out how many they are."""
    appended: list[int] = []
    with contextlib.suppress(Exception):
        encode(message, appended)
    del codes[len(codes) - len(appended) :]


def encode_response_steps(
    api_key: ApiKey, version: int, correlation_id: int, message: Any
) -> Steps[list[Buffer]] | None:
    """Like `encode_response`, in steps; None for a response that is too small for steps."""
    steps = _large_body_steps(response_class, _response_encoder_in_steps, api_key, version, message)
    return None if steps is None else _response_steps(api_key, version, correlation_id, steps)


def error_counter(api_key: ApiKey) -> Callable[[Any, dict[int, int]], None]:
    """Like `count_errors_steps`: a function (response, counts)."""
    steps = _error_counter_in_steps(api_key)
    return lambda message, counts: in_one_go(steps(message, counts))


def count_errors_steps(api_key: ApiKey, message: Any, counts: dict[int, int]) -> Steps[None]:
    """Adds the number of each error code in a response to `counts`, in steps. A response without a code counts as 0."""
    return _error_counter_in_steps(api_key)(message, counts)


def _response_steps(
    api_key: ApiKey, version: int, correlation_id: int, steps: Steps[list[Buffer]]
) -> Steps[list[Buffer]]:
    body = yield from steps
    return _with_response_header(api_key, version, correlation_id, body)


def _large_body_steps(
    class_of: Callable[[ApiKey], type],
    encoder_in_steps: Callable[[ApiKey, int], encoders.EncoderInSteps],
    api_key: ApiKey,
    version: int,
    message: Any,
) -> Steps[list[Buffer]] | None:
    try:
        if not counters.is_large(message):
            return None
    except Exception as error:
        raise _unencodable(class_of(api_key), api_key, version, message, error) from error
    return _encode_in_steps(class_of(api_key), encoder_in_steps(api_key, version), api_key, version, message)


def _encode_in_steps(
    message_class: type, encode: encoders.EncoderInSteps, api_key: ApiKey, version: int, message: Any
) -> Steps[list[Buffer]]:
    try:
        return (yield from encode(message))
    except Exception as error:
        raise _unencodable(message_class, api_key, version, message, error) from error


def _unencodable(message_class: type, api_key: ApiKey, version: int, message: Any, error: Exception) -> Exception:
    return unencodable(message, message_class, version, _is_flexible(api_key, version), error)


def _with_response_header(api_key: ApiKey, version: int, correlation_id: int, body: Sequence[Buffer]) -> list[Buffer]:
    tagged = response_header_version(api_key, version)
    # Most bodies have one buffer. Then this takes a fifth of the time of `sum`.
    body_bytes = len(body[0]) if len(body) == 1 else sum(map(len, body))
    head = _SIZE_AND_CORRELATION.pack(4 + tagged + body_bytes, correlation_id)
    return [head + (b"\0" if tagged else b"") + body[0], *body[1:]]


def parse_correlation_id(frame: Buffer) -> int:
    """The correlation id of a response. Raises InvalidFrame when the frame is too short for one."""
    if len(frame) < 4:
        raise InvalidFrame(f"a response of {len(frame)} bytes", 0, "correlation_id")
    correlation_id: int = _CORRELATION.unpack_from(frame)[0]
    return correlation_id


def decode_response(api_key: ApiKey, version: int, frame: Buffer) -> Any:
    """The message of a whole response frame (without its size). InvalidFrame if it is not exactly one.

    A broker that does not know the request's version of ApiVersions answers in version 0, with UNSUPPORTED_VERSION.
    """
    position = _response_body_position(api_key, version, frame)
    if api_key == ApiKey.API_VERSIONS and frame[position : position + 2] == _UNSUPPORTED_VERSION:
        version = 0
    return _response_decoder(api_key, version)(frame, position)


def response_steps(api_key: ApiKey, version: int, frame: Buffer) -> Steps[Any] | None:
    """Like `decode_response`, in steps; None for a response that is too small for steps."""
    if len(frame) < LARGE_RESPONSE_BYTES:
        return None
    return _response_decoder_in_steps(api_key, version)(frame, _response_body_position(api_key, version, frame))


def _response_body_position(api_key: ApiKey, version: int, frame: Buffer) -> int:
    if response_header_version(api_key, version) == 0:
        return 4
    try:
        return skip_tagged_fields(frame, 4, [MAX_TAGGED_FIELDS])
    except IndexError:
        raise InvalidFrame("the frame ends within the header", len(frame), "response header") from None
