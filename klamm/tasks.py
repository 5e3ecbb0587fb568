"""Background tasks whose faults are heard.

What must stay true: a task that nobody awaits is started here, so that an exception in it is never just logged by the
loop: it is a fault of the program and reaches whoever can stop the process.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

OnFailure = Callable[[BaseException], None]


def start_task(work: Coroutine[Any, Any, None], on_failure: OnFailure) -> "asyncio.Task[None]":
    """Runs `work` beside its caller; `on_failure` hears of its exception, but not of its cancellation."""

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            on_failure(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task
