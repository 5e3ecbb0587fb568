"""docs/recipes.md has the recipes of tests/recipes as they run."""

from pathlib import Path

from support.recipe_page import recipes, written

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_page_has_the_recipes_as_they_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text), "make docs writes it"


def test_there_are_twenty_recipes_each_with_a_title_and_its_reason() -> None:
    found = recipes()
    assert len(found) == 20
    assert len({recipe.title for recipe in found}) == 20
    for recipe in found:
        assert recipe.title[0].isupper()
        assert not recipe.title.endswith(".")
        assert recipe.prose.endswith("."), recipe.title
