"""Types of the arguments that the commands in `tests/support` take. A bad value is named, with what is allowed."""

import argparse


def positive(text: str) -> int:
    """A count of at least 1, as the `type` of an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number of at least 1 is allowed")
    return int(text)
