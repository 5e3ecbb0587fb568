"""Mutation testing: guards of klamm are removed or turned round one at a time, and tests must notice it.

`mutants.py` finds the mutants in a source text (pure), `hunt.py` runs tests and simulated clusters on a copy of the
tree with one mutant in it, and `__main__.py` is the command, which keeps the table `tests/mutants.jsonl`.
"""
