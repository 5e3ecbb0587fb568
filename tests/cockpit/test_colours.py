"""Text of the page can be read in both schemes: its colours have the contrast that WCAG asks for at level AA."""

import re

import pytest

from klamm.cockpit.server import STATIC

AA = 4.5
COLOURS = {
    name: (light, dark)
    for name, light, dark in re.findall(
        r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (STATIC / "cockpit.css").read_text()
    )
}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("behind", ["background", "panel", "raised", "bad-background"])
@pytest.mark.parametrize("text", ["ink", "muted", "accent", "good", "busy", "bad"])
def test_text_stands_out(text: str, behind: str) -> None:
    for one, other in zip(COLOURS[text], COLOURS[behind], strict=True):
        darker, lighter = sorted((luminance(one), luminance(other)))
        assert (lighter + 0.05) / (darker + 0.05) >= AA
