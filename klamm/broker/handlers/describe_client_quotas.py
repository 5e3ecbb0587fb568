"""DescribeClientQuotas (key 48), versions 0 and 1: the quotas of users, clients and IP addresses (KIP-546, KIP-612).

Every broker serves it, from ZooKeeper. A quota that cannot be read is left out.
"""

from klamm.base.slices import in_slices, mapped
from klamm.broker.quotas.entities import Named
from klamm.broker.quotas.filters import QuotaFilter
from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ResourceType

Entry = DescribeClientQuotasResponse.EntryData


def error_response(request: Request[DescribeClientQuotasRequest], error: KafkaError) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(**outcome(error), entries=None)


@handler(
    DescribeClientQuotasRequest,
    Operation.DESCRIBE_CONFIGS,
    ResourceType.CLUSTER,
    error_response=error_response,
    ends_with_client=True,
)
async def handle(request: Request[DescribeClientQuotasRequest]) -> DescribeClientQuotasResponse:
    request.require_cluster()
    components = ((one.entity_type, one.match_type, one.match) for one in request.body.components)
    found = await request.services.quota_admin.describe(QuotaFilter(components, strict=request.body.strict))
    entries = await in_slices(mapped(_entry, found))
    return DescribeClientQuotasResponse(**outcome(), entries=entries)


def _entry(found: tuple[Named, dict[str, float]]) -> Entry:
    entity, values = found
    return Entry(
        entity=[Entry.EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in entity.items()],
        values=[Entry.ValueData(key=key, value=value) for key, value in values.items()],
    )
