"""Helpers of the tests, imported as `support....` everywhere, also by bench/."""
