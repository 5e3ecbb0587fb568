"""AlterClientQuotas (key 49), versions 0 and 1: sets and removes quotas of users, clients and IP addresses (KIP-546,
KIP-612).

Every broker serves it; brokers learn of the change from ZooKeeper. Each entity succeeds or fails on its own.
"""

from klamm.base.slices import Steps, each, mapped
from klamm.broker.request_errors import ITEM_ERRORS, as_kafka_error, outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

Entry = AlterClientQuotasRequest.EntryData
Result = AlterClientQuotasResponse.EntryData


def error_response(request: Request[AlterClientQuotasRequest], error: KafkaError) -> Steps[AlterClientQuotasResponse]:
    return AlterClientQuotasResponse(
        entries=(yield from mapped(lambda entry: _result(entry, error), request.body.entries))
    )


@handler(AlterClientQuotasRequest, Operation.ALTER_CONFIGS, ResourceType.CLUSTER, error_response=error_response)
async def handle(request: Request[AlterClientQuotasRequest]) -> AlterClientQuotasResponse:
    request.require_cluster()
    return AlterClientQuotasResponse(
        entries=[_result(entry, await _alter(request, entry)) async for entry in each(request.body.entries)]
    )


async def _alter(request: Request[AlterClientQuotasRequest], entry: Entry) -> KafkaError:
    parts = [(part.entity_type, part.entity_name) for part in entry.entity]
    operations = [(change.key, None if change.remove else change.value) for change in entry.ops]
    try:
        await request.services.quota_admin.alter(parts, operations, validate_only=request.body.validate_only)
    except ITEM_ERRORS as error:
        return as_kafka_error(error)
    return KafkaError(ErrorCode.NONE)


def _result(entry: Entry, error: KafkaError) -> Result:
    return Result(
        **outcome(error),
        entity=[Result.EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity],
    )
