"""From a frame to its response: header, version, body, handler, throttle time, encoding.

What must stay true:
- A frame is a request only if it begins with a header and a body; otherwise its connection closes. Bytes after the
  body are ignored, as in Kafka.
- A handler's KafkaError becomes the API's error response, and so does a ZooKeeperError (`request_errors`). Any other
  exception is a programming error and stops the broker (the network layer passes it on).
- A response that cannot be encoded is also a programming error, but only its own connection closes: the request has had
  its effect, and no state depends on the response.
- The throttle time is set only here.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import fields
from functools import partial
from types import CoroutineType, GeneratorType
from typing import Any, TypeVar

from klamm.base.slices import Steps, begin, in_slices
from klamm.broker.quotas.request_quota import RequestQuota
from klamm.broker.request_errors import ITEM_ERRORS, as_kafka_error
from klamm.broker.requests.api import Api, CountedApi
from klamm.broker.requests.registry import Request
from klamm.broker.requests.request_metrics import ApiStatistics, RequestStatistics
from klamm.broker.requests.security import ANONYMOUS, Client, Operation
from klamm.broker.requests.services import Services
from klamm.net.server.exchange import Answer, AnswerOnly, Exchange, InvalidRequest, Response
from klamm.net.server.server_connection import ServerConnection
from klamm.protocol import messages
from klamm.protocol.apis.api_versions import ApiVersionsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey, InvalidFrame, UnencodableMessage
from klamm.protocol.primitives import Buffer

T = TypeVar("T")

NO_RESPONSE = Response(None)

# A frame of at least this size is decoded in steps, if its API can. An array's element may take only one byte.
LARGE_FRAME_BYTES = 16 * 1024

_FETCH = ApiKey.FETCH

# Requests of followers and of consumers. A follower sends them over one connection, which must not be muted.
_OF_FOLLOWERS = (ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH)

_log = logging.getLogger(__name__)


class Dispatcher:
    """Serves the requests of all listeners of one broker."""

    def __init__(self, services: Services, work_clock_s: Callable[[], float]) -> None:
        self._services = services
        self.statistics = RequestStatistics(work_clock_s)
        # A server under faults replaces rows here (`klamm.faults.answers`).
        self.apis: dict[int, CountedApi] = {
            int(key): _counted(api, self.statistics[key]) for key, api in services.apis.items()
        }
        self._pipelined = tuple(key.to_bytes(2) for key, api in services.apis.items() if api.pipelined)
        self.on_unencodable: Callable[[ServerConnection, UnencodableMessage], None] = _log_unencodable

    def is_pipelined(self, frame: bytearray) -> bool:
        """Whether the request may start while earlier requests of its API are unanswered."""
        return frame[:2] in self._pipelined

    def dispatch(
        self, connection: ServerConnection, frame: bytearray, exchange: Exchange
    ) -> Answer | Awaitable[Answer]:
        """Starts the request in `frame`. Raises InvalidRequest when the connection must close."""
        try:
            header = messages.parse_request_header(frame)
        except InvalidFrame as error:
            raise InvalidRequest(f"request header: {error}") from None
        exchange.client_id = header.client_id
        api = self.apis.get(header.api_key)
        if api is None:
            name = header.api_key.message_name
            raise InvalidRequest(f"{name} ({int(header.api_key)}) is not served, see docs/unsupported.md")
        if not api.min_version <= header.api_version <= api.max_version:
            return self._unsupported_version(api, header)
        exchange.at_once = api.measurements[header.api_version]
        if len(frame) >= LARGE_FRAME_BYTES:
            return self._dispatch_large(connection, api, header, frame, exchange)
        try:
            body = messages.decode_request(api.key, header.api_version, frame, header.body_position)
        except InvalidFrame as error:
            raise InvalidRequest(f"{api.key.name} v{header.api_version}: {error}") from None
        return self._handle(connection, api, header, body, exchange)

    def _dispatch_large(
        self,
        connection: ServerConnection,
        api: CountedApi,
        header: messages.RequestHeader,
        frame: bytearray,
        exchange: Exchange,
    ) -> Answer | Awaitable[Answer]:
        try:
            body = begin(messages.request_steps(api.key, header.api_version, frame, header.body_position))
        except InvalidFrame as error:
            raise InvalidRequest(f"{api.key.name} v{header.api_version}: {error}") from None
        if not isinstance(body, CoroutineType):
            return self._handle(connection, api, header, body, exchange)
        exchange.pause()
        # A produce request's records are parts of its frame.
        release_frame = _nothing if api.key is ApiKey.PRODUCE else connection.frame_release()
        in_steps = self._dispatch_in_steps(
            connection,
            api,
            header,
            exchange.measured(body),
            exchange,
            release_frame,
            _hold(connection, api),
        )
        return _answer_only(in_steps) if api.ends_with_client else in_steps

    async def _dispatch_in_steps(
        self,
        connection: ServerConnection,
        api: CountedApi,
        header: messages.RequestHeader,
        decoding: Awaitable[Any],
        exchange: Exchange,
        release_frame: Callable[[], None],
        release_followers: Callable[[], None],
    ) -> Answer:
        """Decodes in steps with turns of the loop in between. The connection's next request waits."""
        try:
            body = await decoding
            release_frame()
            exchange.resume()
            result = self._handle(connection, api, header, body, exchange)
        except InvalidFrame as error:
            raise InvalidRequest(f"{api.key.name} v{header.api_version}: {error}") from None
        finally:
            release_followers()
        return await result if isinstance(result, Awaitable) else result

    def _handle(
        self,
        connection: ServerConnection,
        api: CountedApi,
        header: messages.RequestHeader,
        body: Any,
        exchange: Exchange,
    ) -> Answer | Awaitable[Answer]:
        """The stopwatch of the exchange runs."""
        services = self._services
        request = Request(
            api,
            header.api_version,
            Client(ANONYMOUS, connection.peer_host),
            header.correlation_id,
            header.client_id,
            connection,
            body,
            services,
        )
        quotas = services.quotas
        if quotas.is_active:
            watch = exchange if quotas.measures_time else None
            request.quota = RequestQuota(quotas, request.client.user, request.client_id or "", watch)
        try:
            result = api.handle(request)
            if isinstance(result, GeneratorType):
                result = begin(result)
        except KafkaError as error:
            result = api.error_response(request, error)
            if isinstance(result, GeneratorType):
                result = begin(result)
        if isinstance(result, CoroutineType):
            # Looked at here, where a request costs more anyway.
            if api.key is _FETCH and body.replica_id >= 0:
                exchange.is_measured_by(self.statistics.follower_fetches.of_version[header.api_version])
            exchange.pause()
            finishing = self._finish(request, exchange, exchange.measured(result), _hold(connection, api))
            return _answer_only(finishing) if api.ends_with_client else finishing
        return self._answer(request, result, exchange)

    async def _finish(
        self,
        request: Request[Any],
        exchange: Exchange,
        pending: Awaitable[Any],
        release: Callable[[], None] | None = None,
    ) -> Answer:
        try:
            result = await pending
        except ITEM_ERRORS as error:
            result = request.api.error_response(request, as_kafka_error(error))
            if isinstance(result, GeneratorType):
                result = await in_slices(result)
        finally:
            if release is not None:
                release()
        exchange.resume()
        return self._answer(request, result, exchange)

    def _answer(self, request: Request[Any], result: Any, exchange: Exchange) -> Answer:
        """The response to a handler's result. A large response is encoded in steps."""
        quota = request.quota
        if isinstance(result, AnswerOnly):
            exchange.pause()
            return AnswerOnly(partial(self._answer_later, request, exchange, result))
        throttle_time_ms = 0 if quota is None else self._throttle_time_ms(request, exchange.size_bytes, quota, result)
        if result is None:
            return Response(None, throttle_time_ms) if throttle_time_ms else NO_RESPONSE
        # SaslHandshake, SaslAuthenticate and WriteTxnMarkers have no field for it: their client is only muted.
        if throttle_time_ms and hasattr(result, "throttle_time_ms"):
            result.throttle_time_ms = throttle_time_ms
        key, version, correlation_id = request.api.key, request.version, request.correlation_id
        try:
            steps = messages.encode_response_steps(key, version, correlation_id, result)
            if steps is not None:
                exchange.pause()
                return AnswerOnly(partial(self._encode_in_steps, request, exchange, result, steps, throttle_time_ms))
            response = Response(
                messages.encode_response(key, version, correlation_id, result, request.api.error_codes),
                throttle_time_ms,
            )
        except UnencodableMessage as error:
            raise self._unanswerable(request.connection, error) from error
        if quota is not None:
            quota.encoded()
        return response

    def _throttle_time_ms(self, request: Request[Any], size_bytes: int, quota: RequestQuota, result: Any) -> int:
        """How long the client is throttled. Brokers are never throttled: the cluster would wait for them."""
        key = request.api.key
        if request.api.operation is Operation.CLUSTER_ACTION or (key in _OF_FOLLOWERS and request.body.replica_id >= 0):
            quota.answered_exempt()
            return 0
        produced_bytes = size_bytes if key is ApiKey.PRODUCE else 0
        return quota.answered(produced_bytes, is_acknowledged=result is not None)

    async def _encode_in_steps(
        self,
        request: Request[Any],
        exchange: Exchange,
        result: Any,
        steps: Steps[list[Buffer]],
        throttle_time_ms: int,
    ) -> Response:
        try:
            buffers = await exchange.measured(in_slices(steps))
        except UnencodableMessage as error:
            raise self._unanswerable(request.connection, error) from error
        await exchange.measured(in_slices(request.api.statistics.count_errors(result)))
        exchange.resume()
        if request.quota is not None:
            request.quota.encoded()
        return Response(buffers, throttle_time_ms)

    def _unanswerable(self, connection: ServerConnection, error: UnencodableMessage) -> InvalidRequest:
        """Reports the programming error; returns the error that closes the connection."""
        self.on_unencodable(connection, error)
        return InvalidRequest(f"its response cannot be encoded: {error}")

    async def _answer_later(self, request: Request[Any], exchange: Exchange, later: AnswerOnly[Any]) -> Answer:
        return await self._finish(request, exchange, exchange.measured(later.answer()))

    def _unsupported_version(self, api: Api, header: messages.RequestHeader) -> Response:
        """Refuses the version; an ApiVersions request of a future version is answered in version 0 with the served
        versions."""
        if api.key is not ApiKey.API_VERSIONS:
            raise InvalidRequest(
                f"{api.key.name} v{header.api_version} is not served, only v{api.min_version} to v{api.max_version}"
            )
        supported = ApiVersionsResponse.ApiVersion(
            api_key=api.key, min_version=api.min_version, max_version=api.max_version
        )
        body = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[supported])
        return Response(messages.encode_response(api.key, 0, header.correlation_id, body))


def _counted(api: Api, statistics: ApiStatistics) -> CountedApi:
    return CountedApi(
        **{one.name: getattr(api, one.name) for one in fields(api)},
        statistics=statistics,
        measurements=statistics.of_version,
        error_codes=statistics.error_codes,
    )


def _hold(connection: ServerConnection, api: Api) -> Callable[[], None]:
    """Keeps later requests of the connection waiting, because a pipelined request has its effect only with its last
    step. Other requests wait anyway. Returns a function that ends this."""
    return connection.hold_followers() if api.pipelined else _nothing


def _nothing() -> None:
    pass


def _answer_only(answer: Coroutine[Any, Any, Answer]) -> AnswerOnly[Response]:
    return AnswerOnly(lambda: answer)


def _log_unencodable(connection: ServerConnection, error: UnencodableMessage) -> None:
    _log.error("%s: a response cannot be encoded: %s", connection, error, exc_info=error.__cause__)
