"""Each word of the protocol is defined once, in the vocabulary."""

import ast
from functools import cache
from pathlib import Path

from klamm.protocol import vocabulary

ROOT = Path(__file__).parents[2] / "klamm"
VOCABULARY = Path(vocabulary.__file__)
WORDS = {name: value for name, value in vars(vocabulary).items() if not name.startswith("_") and name.isupper()}
TYPES = {name for name, value in vars(vocabulary).items() if getattr(value, "__module__", "") == vocabulary.__name__}


@cache
def modules() -> list[tuple[str, ast.Module]]:
    paths = [path for path in sorted(ROOT.glob("**/*.py")) if path != VOCABULARY]
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def test_no_other_module_defines_a_word_of_the_vocabulary() -> None:
    again = []
    for module, tree in modules():
        for statement in tree.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    if name.lstrip("_") in WORDS:
                        again.append(f"{module}:{statement.lineno}: {name}")
                case ast.ClassDef(name=name) if name in TYPES:
                    again.append(f"{module}:{statement.lineno}: {name}")
    assert again == []


def test_no_other_module_spells_the_names_of_internal_topics() -> None:
    spelled = [
        f"{module}:{node.lineno}: {node.value}"
        for module, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in vocabulary.INTERNAL_TOPICS
    ]
    assert spelled == []
