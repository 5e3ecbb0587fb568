"""The finder of mutants: what it changes, what it leaves alone, and that a name stays with its place."""

import ast

import pytest

from support.mutants.mutants import mutants, sample


def changed(source: str) -> dict[str, str]:
    """The source with each mutant, by name without the module."""
    found = mutants("m.py", source)
    assert len({each.name for each in found}) == len(found)
    for each in found:
        ast.parse(each.applied_to(source))
    return {each.name.partition(":")[2]: each.applied_to(source) for each in found}


@pytest.mark.parametrize(
    ("kind", "source", "mutant"),
    [
        (
            "guard",
            "def f(é):\n    if é:\n        return\n    g()\n",
            "def f(é):\n    if False:\n        return\n    g()\n",
        ),
        ("comparison", "def f(a, b):\n    return (a) < (b)\n", "def f(a, b):\n    return (a) <= (b)\n"),
        ("equality", "def f(a):\n    return a is not None\n", "def f(a):\n    return a is None\n"),
        ("durability", "async def f(a):\n    await a.flush()\n", "async def f(a):\n    pass\n"),
        ("order", "def f(a):\n    a.write(1)\n    a.rename(2)\n", "def f(a):\n    a.rename(2)\n    a.write(1)\n"),
        (
            "error",
            "def f():\n    try:\n        g()\n    except E:\n        h()\n        raise\n",
            "def f():\n    try:\n        g()\n    except E:\n        h()\n        pass\n",
        ),
        ("code", "def f():\n    return ErrorCode.NOT_LEADER\n", "def f():\n    return ErrorCode.NONE\n"),
    ],
)
def test_each_kind(kind: str, source: str, mutant: str) -> None:
    assert changed(source) == {f"f:{kind}-1": mutant}


def test_what_nobody_depends_on_is_left_alone() -> None:
    source = "if a == b:\n    c = 1\n\ndef __repr__(self):\n    return 'a' == 'b'\n\ndef f(a):\n    assert a > 1\n"
    assert changed(source) == {}


def test_a_name_stays_when_other_functions_change() -> None:
    function = "def f(a):\n    return a == 1\n"
    assert set(changed("def g(a):\n    return a == 2\n\n" + function)) == {"g:equality-1", "f:equality-1"}


def test_a_sample_is_always_the_same_and_a_part_of_a_larger_one() -> None:
    found = mutants("m.py", "\n".join(f"def f{number}(a):\n    return a == 1\n" for number in range(500)))
    tenth, half = sample(found, 0.1), sample(found, 0.5)
    assert tenth == sample(found, 0.1)
    assert set(tenth) <= set(half)
    assert 25 < len(tenth) < 100
    assert 200 < len(half) < 300
    assert sample(found, 1) == found
