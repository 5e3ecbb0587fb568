"""`ZooKeeperClient`: the operations of a session.

Each `submit_...` sends at once and returns a future; the method without that prefix awaits the future. The server does
and answers calls in the order in which they were made, so a caller may submit many and await them together.

What must stay true:
- Callers use paths without the chroot: it is prepended to requests and removed from responses.
- Each operation raises the ZooKeeperErrors that its docstring names. Any operation may also raise ConnectionLoss,
  SessionExpired, AuthFailed (of the client), ClientClosed, NoAuth, BadArguments for an invalid path, and
  RequestTooLarge.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import ParamSpec, TypeVar

from klamm.base.slices import CHEAP_SLICE, Steps, mapped
from klamm.zookeeper import messages
from klamm.zookeeper.client.session import Session, no_result
from klamm.zookeeper.client.watches import Watch
from klamm.zookeeper.keeper_exceptions import (
    ConnectionLoss,
    NodeExists,
    NoNode,
    NotEmpty,
    ZooKeeperErrorCode,
    error_for,
)
from klamm.zookeeper.messages import OPEN_ACL, Acl, CreateMode, MultiOperation, MultiResult, OpCode, Stat

T = TypeVar("T")
P = ParamSpec("P")


class ZooKeeperClient(Session):
    """A session and its operations. See the module, and `session` for how a session lives and ends."""

    def submit_get(self, path: str, watch: Watch | None = None) -> "asyncio.Future[tuple[bytes, Stat]]":
        """The data and stat of a znode. NoNode."""
        full = self._full_path(path)
        return self._submit(messages.GetData(full, watch is not None), path, full, _data, watch)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        return await self.submit_get(path, watch)

    def submit_exists(self, path: str, watch: Watch | None = None) -> "asyncio.Future[Stat | None]":
        """The stat of a znode, None when it does not exist."""
        full = self._full_path(path)
        return self._submit(messages.Exists(full, watch is not None), path, full, _stat, watch, absent=(None,))

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        return await self.submit_exists(path, watch)

    def submit_children(self, path: str, watch: Watch | None = None) -> "asyncio.Future[list[str]]":
        """The names of a znode's children, sorted. NoNode."""
        full = self._full_path(path)
        request = messages.GetChildren(full, watch is not None, OpCode.GET_CHILDREN)
        return self._submit(request, path, full, _children, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return await self.submit_children(path, watch)

    def submit_create(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        acl: Sequence[Acl] = OPEN_ACL,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> "asyncio.Future[tuple[str, Stat]]":
        """Creates a znode. The returned path has the sequence number. NodeExists, NoNode (the parent), InvalidACL,
        NoChildrenForEphemerals."""
        full = self._full_path(path, sequential=sequential)
        flags = (CreateMode.EPHEMERAL if ephemeral else 0) | (CreateMode.PERSISTENT_SEQUENTIAL if sequential else 0)

        def convert(response: messages.CreateResponse) -> tuple[str, Stat]:
            assert response.stat is not None
            return self._user_path(response.path), response.stat

        return self._submit(messages.Create(full, data, tuple(acl), flags), path, full, convert)

    async def create(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        acl: Sequence[Acl] = OPEN_ACL,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> tuple[str, Stat]:
        return await self.submit_create(path, data, acl=acl, ephemeral=ephemeral, sequential=sequential)

    def submit_set(self, path: str, data: bytes | None, version: int = -1) -> "asyncio.Future[Stat]":
        """Replaces a znode's data if it has this version (-1: any). NoNode, BadVersion."""
        full = self._full_path(path)
        return self._submit(messages.SetData(full, data, version), path, full, _stat)

    async def set(self, path: str, data: bytes | None, version: int = -1) -> Stat:
        return await self.submit_set(path, data, version)

    def submit_delete(self, path: str, version: int = -1) -> "asyncio.Future[None]":
        """Deletes a znode if it has this version (-1: any). NoNode, BadVersion, NotEmpty."""
        full = self._full_path(path)
        return self._submit(messages.Delete(full, version), path, full, no_result)

    async def delete(self, path: str, version: int = -1) -> None:
        await self.submit_delete(path, version)

    def submit_multi(self, operations: Sequence[MultiOperation]) -> "asyncio.Future[list[MultiResult]]":
        """Does all of the operations or none of them. Raises the failed operation's error, with its `index`."""
        paths = [operation.path for operation in operations]
        full_paths = [self._full_path(operation.path, sequential=_is_sequential(operation)) for operation in operations]
        if self._chroot:
            operations = [
                dataclasses.replace(operation, path=full)
                for operation, full in zip(operations, full_paths, strict=True)
            ]

        def with_user_path(result: MultiResult) -> MultiResult:
            return result if result.path is None else result._replace(path=self._user_path(result.path))

        def convert(response: messages.MultiResponse) -> Steps[list[MultiResult]]:
            _raise_failure(response.results, paths)
            return (yield from mapped(with_user_path, response.results))

        return self._submit(messages.Multi(tuple(operations)), "", "", convert)

    async def multi(self, operations: Sequence[MultiOperation]) -> list[MultiResult]:
        return await self.submit_multi(operations)

    async def get_acl(self, path: str) -> tuple[tuple[Acl, ...], Stat]:
        """The access control list and stat of a znode. NoNode."""
        full = self._full_path(path)
        return await self._submit(messages.GetAcl(full), path, full, _acl)

    async def set_acl(self, path: str, acl: Sequence[Acl], version: int = -1) -> Stat:
        """Replaces a znode's ACL if its `aversion` is `version` (-1: any). NoNode, BadVersion, InvalidACL."""
        full = self._full_path(path)
        return await self._submit(messages.SetAcl(full, tuple(acl), version), path, full, _stat)

    async def sync(self, path: str = "/") -> None:
        """Returns when this server knows every write that any client completed before the call."""
        full = self._full_path(path)
        await self._submit(messages.Sync(full), path, full, no_result)

    async def ensure_path(self, path: str, acl: Sequence[Acl] = OPEN_ACL) -> None:
        """Creates a znode and its parents, without data. Existing znodes stay as they are."""
        await self._ensure_full_path(self._full_path(path), acl)

    async def ensure_chroot(self, acl: Sequence[Acl] = OPEN_ACL) -> None:
        """Creates the connect string's chroot, below which all other operations work."""
        if self._chroot:
            await self._ensure_full_path(self._chroot, acl)

    async def delete_recursive(self, path: str) -> None:
        """Deletes a znode and everything below it, including znodes created meanwhile. The znode need not exist."""
        while True:
            levels = [[path]]
            while levels[-1]:
                levels.append(await self._children_of(levels[-1]))
            try:
                for level in reversed(levels):
                    await self._delete_all(level)
                return
            except NotEmpty:
                continue

    async def _children_of(self, paths: list[str]) -> list[str]:
        answers = await asyncio.gather(*map(self.submit_children, paths), return_exceptions=True)
        found = []
        for path, answer in zip(paths, answers, strict=True):
            if not isinstance(answer, BaseException):
                found += [f"{path.rstrip('/')}/{name}" for name in answer]
            elif not isinstance(answer, NoNode):
                raise answer
        return found

    async def _delete_all(self, paths: list[str]) -> None:
        answers = await asyncio.gather(*map(self.submit_delete, paths), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NoNode):
                raise answer

    async def _ensure_full_path(self, full: str, acl: Sequence[Acl]) -> None:
        parts = full.split("/")[1:] if full != "/" else []
        levels = ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]
        answers = await asyncio.gather(
            *(self._submit(messages.Create(level, None, tuple(acl)), level, level, no_result) for level in levels),
            return_exceptions=True,
        )
        # A parent that this session may not create can still exist, so only the last level's answer decides.
        if answers and isinstance(answers[-1], BaseException) and not isinstance(answers[-1], NodeExists):
            raise next(a for a in answers if isinstance(a, BaseException) and not isinstance(a, NodeExists))


async def retrying(call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Repeats `call(...)` while it raises ConnectionLoss. Only for calls that may be done twice, such as reads.

    Every new try waits for the connection, so the loop does not spin. It ends with the session.
    """
    while True:
        try:
            return await call(*args, **kwargs)
        except ConnectionLoss:
            continue


def _data(response: messages.GetDataResponse) -> tuple[bytes, Stat]:
    return response.data or b"", response.stat


def _stat(response: messages.StatResponse) -> Stat:
    return response.stat


def _children(response: messages.GetChildrenResponse) -> Steps[list[str]]:
    return sorted_steps(response.children)


def sorted_steps(items: Sequence[str]) -> Steps[list[str]]:
    """The steps of `sorted(items)`: pieces are sorted, and then merged two by two."""
    runs = [sorted(items[:CHEAP_SLICE])]
    for start in range(CHEAP_SLICE, len(items), CHEAP_SLICE):
        yield
        runs.append(sorted(items[start : start + CHEAP_SLICE]))
    while len(runs) > 1:
        merged = []
        for first in range(0, len(runs), 2):
            yield
            # The sort finds both runs and merges them.
            merged.append(sorted(chain.from_iterable(runs[first : first + 2])))
        runs = merged
    return runs[0]


def _acl(response: messages.GetAclResponse) -> tuple[tuple[Acl, ...], Stat]:
    return response.acl, response.stat


def _is_sequential(operation: MultiOperation) -> bool:
    return isinstance(operation, messages.Create) and bool(operation.flags & CreateMode.PERSISTENT_SEQUENTIAL)


def _raise_failure(results: Sequence[MultiResult], paths: Sequence[str]) -> None:
    """Raises the error of the operation that made the multi fail."""
    failed = [index for index, result in enumerate(results) if result.op == OpCode.ERROR and result.error]
    if not failed:
        return
    index = next((i for i in failed if results[i].error != ZooKeeperErrorCode.RUNTIME_INCONSISTENCY), failed[0])
    raise error_for(results[index].error, paths[index], index=index)
