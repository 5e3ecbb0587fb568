"""Background tasks whose exceptions are reported.

What must stay true: every task that no code awaits is started here. An exception in such a task is a programming error:
`on_failure` gets the exception and can stop the process, while the loop would only log it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

OnFailure = Callable[[BaseException], None]


def start_task(work: Coroutine[Any, Any, None], on_failure: OnFailure) -> "asyncio.Task[None]":
    """Runs `work` beside its caller; `on_failure` gets its exception, but not its cancellation."""

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            on_failure(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task
