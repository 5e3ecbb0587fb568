"""Where the tests are, for the programs that they start: `PYTHONPATH=TESTS` is how those find `support`."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
