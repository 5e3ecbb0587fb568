"""Rates over a sliding window, and token buckets: the arithmetic of all quotas. Pure.

Callers pass the time in milliseconds, from one clock that never goes back.

What must stay true: the memory of a rate is bounded by its number of windows.

Source: org.apache.kafka.common.metrics.stats.SampledStat, SimpleRate, Rate, TokenBucket.
"""

from collections import deque


class SampledRate:
    """The amount recorded in the newest `samples` windows of `window_ms`. A window begins with its first record."""

    __slots__ = ("_samples", "_windows", "total", "window_ms")

    def __init__(self, *, samples: int, window_ms: float) -> None:
        self.window_ms = window_ms
        self.total: float = 0
        self._samples = samples
        # [start, total] of each window, the oldest first.
        self._windows: deque[list[float]] = deque()

    def record(self, value: float, now_ms: float) -> None:
        windows = self._windows
        if not windows or now_ms - windows[-1][0] >= self.window_ms:
            windows.append([now_ms, 0])
            if len(windows) > self._samples:  # The two oldest windows merge, to bound the memory.
                start_ms, total = windows.popleft()
                windows[0][0] = start_ms
                windows[0][1] += total
        windows[-1][1] += value
        self.total += value

    def elapsed_ms(self, now_ms: float) -> float:
        """The time in which `total` was recorded: at least one window."""
        return max(self.window_ms, now_ms - self._windows[0][0]) if self._windows else self.window_ms

    def full_span_ms(self, now_ms: float) -> float:
        """The time in which `total` was recorded, counting missing windows as windows without records: at least
        `samples - 1` windows and the elapsed part of the newest window."""
        elapsed_ms = now_ms - self.began_ms(now_ms)
        missing = max(self._samples - 1, 1) - int(elapsed_ms // self.window_ms)
        return elapsed_ms + max(0, missing) * self.window_ms

    def began_ms(self, now_ms: float) -> float:
        """When the oldest window began."""
        return self._windows[0][0] if self._windows else now_ms

    def per_second(self, now_ms: float) -> float:
        return self.total * 1000 / self.elapsed_ms(now_ms)

    def forget_old(self, now_ms: float) -> None:
        """Forgets the windows that began too long ago."""
        oldest_ms = now_ms - self._samples * self.window_ms
        while self._windows and self._windows[0][0] <= oldest_ms:
            self.total -= self._windows.popleft()[1]
        if not self._windows:
            self.total = 0  # Removes rounding errors of fractions.

    def clear(self) -> None:
        self._windows.clear()
        self.total = 0


class TokenBucket:
    """Tokens that are refilled at a rate, up to a burst. The bucket starts full, and may be overdrawn."""

    __slots__ = ("_tokens", "_updated_ms")

    def __init__(self) -> None:
        self._tokens = float("inf")
        self._updated_ms = 0.0

    def tokens(self, per_second: float, burst: float, now_ms: float) -> float:
        """The tokens that are left now; negative if the bucket is overdrawn."""
        if self._tokens < burst:
            self._tokens += per_second * (now_ms - self._updated_ms) / 1000
        self._tokens = min(burst, self._tokens)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, count: float, per_second: float, burst: float, now_ms: float) -> float:
        """Takes tokens, even if this overdraws the bucket; returns the tokens that are left."""
        self._tokens = self.tokens(per_second, burst, now_ms) - count
        return self._tokens
