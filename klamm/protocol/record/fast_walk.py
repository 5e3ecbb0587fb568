"""Chooses between the walk of `record_walk` and its compiled form, `record_kernels`.

What must stay true:
- numba is imported only for a batch of very many records, and only by a process that may import it: the worker.
- Where compiled code is unavailable the same walk continues, only slower.
"""

from collections.abc import Callable
from functools import cache

from klamm.protocol.record.record_walk import RecordWalk

# Above this count, importing numba pays for itself.
COMPILED_FROM_RECORDS = 200_000
# How many times as many steps the compiled walk makes in the same time.
COMPILED_SPEEDUP = 50


def advance_fast(walk: RecordWalk, most_steps: int) -> bool:
    """Like `walk.advance`, but compiled if very many records are left, numba works, and this process may import it (the
    worker)."""
    if walk.header.record_count - walk.index >= COMPILED_FROM_RECORDS and walk.begun is None:
        advance = _compiled_advance()
        if advance is not None:
            return advance(walk, most_steps * COMPILED_SPEEDUP)
    return walk.advance(most_steps)


@cache
def _compiled_advance() -> Callable[[RecordWalk, int], bool] | None:
    """The compiled walk. None if it is unavailable: numba is missing or does not fit numpy, its cache is not
    writable..."""
    try:
        from klamm.protocol.record.record_kernels import advance  # numba takes half a second and much memory
    except Exception:
        return None
    return advance
