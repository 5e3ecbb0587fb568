"""Wrong answers planted in klamm, for the judge of requests: each must be found within some seeds.

Most take a guard away, so that klamm answers where Kafka refuses; some answer with another error.
"""

from collections.abc import Callable
from typing import Any

from klamm.broker.configs.admin import ConfigAdmin
from klamm.broker.quotas.admin import QuotaAdmin
from klamm.coordinator.groups import group_coordinator
from klamm.coordinator.groups.group import Group
from klamm.coordinator.groups.group_coordinator import GroupCoordinator
from klamm.coordinator.transactions import coordinator
from klamm.coordinator.transactions.transaction import end
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.replication.partition.partition import Partition
from klamm.storage.log.log_reader import LogReader
from klamm.storage.log.producer_state import ProducerState
from support.planted_faults.fault import PlantedFault, Replacement

CHECKER = "requests_beside"


def _checked_without(*codes: ErrorCode) -> Replacement:
    """The log takes batches that it would refuse with one of these errors."""
    check = ProducerState.check

    def less_checked(state: ProducerState, *arguments: Any) -> None:
        try:
            check(state, *arguments)
        except KafkaError as error:
            if error.code not in codes:
                raise

    return Replacement(ProducerState, "check", less_checked)


def _instead(module: Any, name: str, code: ErrorCode, other: ErrorCode | None) -> Replacement:
    """A function of the module answers `other` where it would answer `code`."""
    usual: Callable[..., Any] = vars(module)[name]

    def changed(*arguments: Any, **options: Any) -> Any:
        answer = usual(*arguments, **options)
        return other if answer is code else answer

    return Replacement(module, name, changed)


def _fixed(owner: Any, name: str, **values: Any) -> Replacement:
    """A method gets these arguments, whatever its caller gives."""
    usual: Callable[..., Any] = vars(owner)[name]
    return Replacement(owner, name, lambda *arguments, **options: usual(*arguments, **options | values))


def _end_again(known: Any, committed: bool, now_ms: int) -> Any:
    ended = end(known, committed, now_ms)
    return known if ended is ErrorCode.INVALID_TXN_STATE else ended


def _none_aborted(*_: Any) -> Any:
    yield from ()
    return []


def _fault(name: str, what: str, symptom: str, within: int, *replacements: Replacement) -> PlantedFault:
    return PlantedFault(name, what, replacements, CHECKER, symptom, within)


FAULTS = {
    fault.name: fault
    for fault in (
        _fault(
            "old-epoch",
            "a log takes batches and markers of an old producer epoch",
            "INVALID_PRODUCER_EPOCH",
            40,
            _checked_without(ErrorCode.INVALID_PRODUCER_EPOCH),
        ),
        _fault(
            "gap",
            "a log takes a batch whose sequence is not the next",
            "OUT_OF_ORDER_SEQUENCE_NUMBER",
            20,
            _checked_without(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ),
        _fault(
            "zombie-marker",
            "a log takes markers of an older coordinator",
            "TRANSACTION_COORDINATOR_FENCED",
            100,
            _checked_without(ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        ),
        _fault(
            "outside",
            "a log takes a batch outside of the producer's open transaction",
            "INVALID_TXN_STATE",
            100,
            _checked_without(ErrorCode.INVALID_TXN_STATE),
        ),
        _fault(
            "repeated",
            "a batch that comes again is refused",
            "OUT_OF_ORDER_SEQUENCE_NUMBER",
            40,
            Replacement(ProducerState, "find_duplicate", lambda *_: None),
        ),
        _fault(
            "old-generation",
            "a coordinator stores offsets of an old generation",
            "ILLEGAL_GENERATION",
            100,
            _instead(group_coordinator, "commit_error", ErrorCode.ILLEGAL_GENERATION, None),
        ),
        _fault(
            "old-heartbeat",
            "a heartbeat of an old generation counts",
            "ILLEGAL_GENERATION",
            60,
            _instead(group_coordinator, "member_error", ErrorCode.ILLEGAL_GENERATION, None),
        ),
        _fault(
            "instance",
            "a fenced static member is not refused",
            "FENCED_INSTANCE_ID",
            100,
            Replacement(Group, "is_fenced", lambda *_: False),
        ),
        _fault(
            "fenced-code",
            "the transaction coordinator has another error for a fenced producer",
            "klamm .INVALID_PRODUCER_EPOCH",
            40,
            _instead(coordinator, "producer_error", ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        ),
        _fault(
            "ended-otherwise",
            "an aborted transaction may be committed, and the other way round",
            "INVALID_TXN_STATE",
            60,
            Replacement(coordinator, "end", _end_again),
        ),
        _fault(
            "uncommitted",
            "read_committed reads up to the high watermark",
            "Fetch|ListOffsets",
            40,
            Replacement(Partition, "fetch_upper_bound", lambda partition, _: partition.log.high_watermark),
        ),
        _fault(
            "none-aborted",
            "a fetch names no aborted transactions",
            "aborted_transactions",
            40,
            Replacement(LogReader, "aborted_transactions", _none_aborted),
        ),
        _fault(
            "unstable",
            "OffsetFetch returns offsets although a transaction has newer ones",
            "UNSTABLE_OFFSET_COMMIT",
            60,
            _fixed(GroupCoordinator, "fetch_offsets", require_stable=False),
        ),
        _fault(
            "not-only-validated",
            "configurations that are only to be validated are stored",
            "DescribeConfigs",
            300,
            _fixed(ConfigAdmin, "replace_topic", validate_only=False),
            _fixed(ConfigAdmin, "change_topic", validate_only=False),
        ),
        _fault(
            "quota-not-validated",
            "quotas that are only to be validated are stored",
            "DescribeClientQuotas",
            300,
            _fixed(QuotaAdmin, "alter", validate_only=False),
        ),
    )
}
