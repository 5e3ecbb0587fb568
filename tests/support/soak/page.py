"""The figures of a soak as one page of HTML, each over time as a small plot. It needs no other file and no script."""

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from support.soak.figures import Growth, Look

WIDTH, HEIGHT = 460, 110
STYLE = """
:root { color-scheme: light dark;
  --ground: #ffffff; --ink: #1c2530; --quiet: #5b6673; --line: #1f6fb2; --bad: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --ink: #e6eaef; --quiet: #9aa5b1; --line: #5aa9e6; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 1000px;
  margin: 2rem auto; padding: 0 1rem; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; width: 460px; }
figcaption { color: var(--quiet); } .bad { color: var(--bad); }
polyline { fill: none; stroke: var(--line); stroke-width: 1.5; } .limit { stroke: var(--bad); stroke-dasharray: 4 4; }
.fault { fill: var(--bad); opacity: .12; } text { fill: var(--quiet); font-size: 11px; }
"""


def page(title: str, looks: Sequence[Look], growths: Sequence[Growth], problems: Sequence[str]) -> str:
    """Shaded spans have faults; a dashed line is a bound."""
    lines = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>",
        *(f'<p class="bad">{escape(problem)}</p>' for problem in problems),
        '<div class="plots">',
    ]
    for growth in growths:
        lines += _plot(growth, looks)
    return "\n".join([*lines, "</div></body></html>", ""])


def _points(growth: Growth, looks: Sequence[Look]) -> list[tuple[float, float]]:
    name, _, share = growth.figure.removesuffix(" ms").rpartition(" p")
    if growth.figure.endswith(" ms") and share.isdigit():
        return [
            (look.at_s, sorted(values)[min(len(values) - 1, len(values) * int(share) // 100)])
            for look in looks
            if (values := look.latencies_ms.get(name))
        ]
    return [(look.at_s, look.figures[growth.figure]) for look in looks if growth.figure in look.figures]


def _plot(growth: Growth, looks: Sequence[Look]) -> list[str]:
    points = _points(growth, looks)
    end_s = max((look.at_s for look in looks), default=1) or 1
    top = max([value for _, value in points] + [growth.limit or 0], default=0) * 1.05 or 1

    def x(at_s: float) -> float:
        return round(at_s / end_s * WIDTH, 1)

    def y(value: float) -> float:
        return round(HEIGHT - value / top * HEIGHT, 1)

    bad = ' class="bad"' if growth.is_too_much else ""
    lines = [
        f"<figure><figcaption{bad}>{escape(growth.figure)}: {growth.first:.4g} to {growth.last:.4g}</figcaption>",
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 14}" role="img" aria-label="{escape(growth.figure)} over time">',
    ]
    for before, look in pairwise(looks):
        if not look.is_calm:
            width = x(look.at_s) - x(before.at_s)
            lines.append(f'<rect class="fault" x="{x(before.at_s)}" y="0" width="{width:.1f}" height="{HEIGHT}"/>')
    if growth.limit is not None:
        lines.append(f'<polyline class="limit" points="0,{y(growth.limit)} {WIDTH},{y(growth.limit)}"/>')
    lines.append(f'<polyline points="{" ".join(f"{x(at_s)},{y(value)}" for at_s, value in points)}"/>')
    lines.append(f'<text x="0" y="{HEIGHT + 12}">0 s, up to {top:.4g}</text>')
    lines.append(f'<text x="{WIDTH}" y="{HEIGHT + 12}" text-anchor="end">{end_s:.0f} s</text></svg></figure>')
    return lines
