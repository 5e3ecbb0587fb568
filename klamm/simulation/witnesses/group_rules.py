"""Checks that a coordinator takes commits only from members of the current generation.

What must be true when the records of a commit are appended to the log: the group is in the commit's generation, and
has its member. A commit without a generation is appended only while the group has no members, or in a transaction:
before KIP-447 producers send no generation.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from klamm.base.tasks import OnFailure
from klamm.coordinator.groups.group import Group
from klamm.coordinator.groups.group_coordinator import GroupCoordinator
from klamm.coordinator.groups.group_metadata_manager import GroupMetadataManager
from klamm.simulation.machine.process import SimulationFailure


class _Sender(NamedTuple):
    """The sender of a commit. A negative generation or an empty member id means that the commit names none."""

    generation_id: int
    member_id: str
    is_in_transaction: bool


_SENDER: ContextVar[_Sender] = ContextVar("klamm_simulated_commit")


def watch_group_commits(coordinator: GroupCoordinator, manager: GroupMetadataManager, on_violation: OnFailure) -> None:
    """From now on the commits to this coordinator are checked; `on_violation` gets the SimulationFailure."""

    def check(group: Group | None) -> None:
        sender = _SENDER.get()
        if group is not None and (what := _violation(group, sender)) is not None:
            on_violation(
                SimulationFailure(
                    f"a commit of {sender} is accepted by the coordinator of group {group.group_id}: {what}"
                )
            )

    commit, store = coordinator.commit_offsets, manager.store_offsets
    commit_in_transaction = coordinator.commit_transactional_offsets
    store_in_transaction = manager.store_transactional_offsets

    def noting(inner: Callable[..., Awaitable[Any]], *, is_in_transaction: bool) -> Callable[..., Awaitable[Any]]:
        async def noted(group_id: str, generation_id: int, member_id: str, *rest: Any) -> Any:
            _SENDER.set(_Sender(generation_id, member_id, is_in_transaction))
            return await inner(group_id, generation_id, member_id, *rest)

        return noted

    async def checked(group: Group, *rest: Any) -> Any:
        check(group)
        return await store(group, *rest)

    async def checked_in_transaction(group_id: str, *rest: Any) -> Any:
        check(manager.get(group_id))
        return await store_in_transaction(group_id, *rest)

    # All commits take one of these ways.
    vars(coordinator).update(
        commit_offsets=noting(commit, is_in_transaction=False),
        commit_transactional_offsets=noting(commit_in_transaction, is_in_transaction=True),
    )
    vars(manager).update(store_offsets=checked, store_transactional_offsets=checked_in_transaction)


def _violation(group: Group, sender: _Sender) -> str | None:
    if sender.generation_id >= 0 and sender.generation_id != group.generation_id:
        return f"its generation is {group.generation_id}"
    if sender.member_id and sender.member_id not in group.members:
        return f"its members are {list(group.members)}"
    if sender.generation_id < 0 and not sender.member_id and not sender.is_in_transaction and group.members:
        return f"a client that is no member commits while the members are {list(group.members)}"
    return None
