"""Writes many znodes in few requests, guarded by the controller epoch.

A batch is one `multi`: a check of /controller_epoch's version, then the operations. It is bounded
(`MAX_BATCH_OPERATIONS`, `MAX_BATCH_BYTES`), since a multi counts as one request against the server's limit of 1 MB.

What must stay true:
- With a guard, nothing is written once another controller is elected: the check fails and raises `ControllerMoved`.
- Every operation gets its own result. A multi is atomic, so when it fails on one operation, its operations are done
  one by one, each with its own check.
- An operation larger than servers accept is not sent; its result is RequestTooLarge.
- When a lost connection has taken the answer, the batch is sent again only if it was not done. A batch is atomic, so
  one of its znodes shows whether it was done (`_was_done`).
"""

import asyncio
from collections.abc import Iterator, Sequence

from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH
from klamm.zookeeper.client import ZooKeeperClient, retrying
from klamm.zookeeper.keeper_exceptions import (
    BadVersion,
    ConnectionLoss,
    NoNode,
    RequestTooLarge,
    ZooKeeperError,
    error_for,
)
from klamm.zookeeper.messages import Check, Create, Delete, MultiOperation, MultiResult, OpCode, SetData

MAX_BATCH_OPERATIONS = 1_000
MAX_BATCH_BYTES = 512 * 1024
_OVERHEAD_BYTES = 64  # The bytes of an operation besides its path and data: headers, lengths, the open ACL.

Result = MultiResult | ZooKeeperError


class ControllerMoved(Exception):
    """Another controller was elected. The controller that wrote under the old epoch must resign."""


async def write(
    client: ZooKeeperClient, operations: Sequence[MultiOperation], guard: int | None = None, *, resend: bool = True
) -> list[Result]:
    """Does the operations in order, batched and pipelined; returns the result or error of each.

    `guard`: the version that /controller_epoch must have; None writes without a check. Without `resend`, operations
    that were not done at once, because there was no connection or it was lost, have the result ConnectionLoss. Raises
    ControllerMoved, and the errors that end a session (SessionExpired, AuthFailed, ClientClosed). After an error, any
    operation may have been done.
    """
    check = [] if guard is None else [Check(CONTROLLER_EPOCH_PATH, guard)]
    answers = await asyncio.gather(
        *(_write_batch(client, batch, check, resend) for batch in _batches(operations, len(client.chroot)))
    )
    return [result for answer in answers for result in answer]


async def write_together(client: ZooKeeperClient, operations: Sequence[MultiOperation], guard: int) -> None:
    """Does all of a few operations, or none of them. Raises ControllerMoved, and the failed operation's error. After
    ConnectionLoss the outcome is unknown."""
    try:
        await client.multi([Check(CONTROLLER_EPOCH_PATH, guard), *operations])
    except BadVersion as error:
        if error.index != 0:
            raise
        raise _moved(guard) from None


def _moved(guard: int) -> ControllerMoved:
    return ControllerMoved(f"the version of {CONTROLLER_EPOCH_PATH} is no longer {guard}")


def _batches(operations: Sequence[MultiOperation], chroot_bytes: int = 0) -> Iterator[Sequence[MultiOperation]]:
    start = size = 0
    for index, operation in enumerate(operations):
        operation_bytes = _OVERHEAD_BYTES + chroot_bytes + len(operation.path)
        if isinstance(operation, Create | SetData):
            operation_bytes += len(operation.data or b"")
        # One operation of each batch is the check.
        if index > start and (index - start >= MAX_BATCH_OPERATIONS - 1 or size + operation_bytes > MAX_BATCH_BYTES):
            yield operations[start:index]
            start, size = index, 0
        size += operation_bytes
    if start < len(operations):
        yield operations[start:]


async def _write_batch(
    client: ZooKeeperClient, operations: Sequence[MultiOperation], check: list[Check], resend: bool
) -> list[Result]:
    while True:
        zxid = client.last_zxid
        try:
            if not resend and not client.sends_at_once:
                raise ConnectionLoss
            return [*(await client.multi([*check, *operations]))[len(check) :]]
        except ConnectionLoss:
            done = await _was_done(client, operations, zxid)
            if done is not None:
                return done
            if not resend:
                return [ConnectionLoss(operation.path) for operation in operations]
        except RequestTooLarge as error:
            if len(operations) > 1:
                raise
            return [RequestTooLarge(operations[0].path, error.message)]
        except ZooKeeperError as error:
            return await _after_failure(client, operations, check, resend, error)


async def _after_failure(
    client: ZooKeeperClient,
    operations: Sequence[MultiOperation],
    check: list[Check],
    resend: bool,
    error: ZooKeeperError,
) -> list[Result]:
    if check and error.index == 0:
        if isinstance(error, BadVersion):
            raise _moved(check[0].version)
        raise error
    if error.index is None:  # The error is about the session or the whole request.
        raise error
    if len(operations) == 1:
        return [error_for(error.code, error.path)]  # The same error as from a single operation.
    answers = await asyncio.gather(*(_write_batch(client, [operation], check, resend) for operation in operations))
    return [answer[0] for answer in answers]


async def _was_done(client: ZooKeeperClient, operations: Sequence[MultiOperation], zxid: int) -> list[Result] | None:
    """The results of a batch whose answer was lost; None if it was not done. `zxid` is the newest zxid seen before it.

    Once the session is back and `sync` has returned, no request of the lost connection is pending. The znode of a
    conditional set is the best evidence: if the batch was done, it has the next version and our data. A created znode
    has our data and is newer than `zxid`. A batch with neither (only deletions and unconditional sets) may be done
    twice.
    """
    conditional = next((o for o in operations if isinstance(o, SetData) and o.version >= 0), None)
    created = next((o for o in operations if isinstance(o, Create)), None)
    witness = conditional or created
    if witness is None:
        return None
    await retrying(client.sync)
    try:
        data, stat = await retrying(client.get, witness.path)
    except NoNode:
        return None
    if data != (witness.data or b""):
        return None
    done = stat.version == witness.version + 1 if isinstance(witness, SetData) else stat.czxid > zxid
    return await _results_of(client, operations) if done else None


async def _results_of(client: ZooKeeperClient, operations: Sequence[MultiOperation]) -> list[Result]:
    """The multi's results, rebuilt from the znodes. Other writers may have changed the znodes since.

    The returned versions must be those of our write, so that our next conditional write detects such a change.
    """
    stats = await retrying(lambda: asyncio.gather(*(client.submit_exists(operation.path) for operation in operations)))
    results: list[Result] = []
    for operation, stat in zip(operations, stats, strict=True):
        if isinstance(operation, Delete | Check):
            results.append(MultiResult(operation.op))
        elif stat is None:
            results.append(NoNode(operation.path, "gone since it was written"))
        elif isinstance(operation, Create):
            results.append(MultiResult(OpCode.CREATE, 0, operation.path))
        else:
            version = stat.version if operation.version < 0 else operation.version + 1
            results.append(MultiResult(operation.op, 0, None, stat._replace(version=version)))
    return results
