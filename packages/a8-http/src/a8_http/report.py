"""The picture of a test: how coverage and accuracy move with the minimum accuracy that is asked."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

ASKED = (0, 50, 60, 70, 80, 85, 90, 95, 99)
BAR = 30


class Point(NamedTuple):
    """What came of a test at one minimum accuracy; accuracy is None where nothing was answered."""

    asked: int
    coverage: float
    accuracy: float | None


def joined(pages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of a test's pages as one result."""
    total = {name: sum(page[name] for page in pages) for name in ("cases", "taught", "answered")}
    lists = {name: [one for page in pages for one in page[name]] for name in ("misses", "abstentions")}
    answered, tested = total["answered"], total["cases"] - total["taught"]
    return {
        "model": pages[0]["model"],
        "min_accuracy": pages[0]["min_accuracy"],
        **total,
        "accuracy": (answered - len(lists["misses"])) / answered if answered else None,
        "coverage": answered / tested if tested else None,
        **lists,
    }


def point(result: Mapping[str, Any]) -> Point:
    """A test's result as a point of the picture."""
    return Point(result["min_accuracy"], result["coverage"], result["accuracy"])


def summary(result: Mapping[str, Any]) -> str:
    """What a test found, in words; every miss and abstention on a line of its own."""
    accuracy = "–" if result["accuracy"] is None else f"{result['accuracy']:.1%}"
    lines = [
        f"{result['model']}: {counted(result['cases'] - result['taught'], 'case')}",
        f"accuracy {accuracy} of {result['answered']} answered, coverage {result['coverage']:.1%}",
    ]
    if result["taught"]:
        lines.append(
            f"left out: {counted(result['taught'], 'case')} taught as given, which would test nothing"
        )
    lines.append(f"\nMisses: {len(result['misses'])}")
    lines += [f"  {_short(one)}  got {_json(one['verdict'])}" for one in result["misses"]]
    lines.append(f"\nAbstentions: {len(result['abstentions'])}")
    for one in result["abstentions"]:
        gap = one["abstention"]
        at = "never" if gap["answerable_at"] is None else f"at {gap['answerable_at']}"
        lines.append(f"  {_short(one)}  {gap['kind']}, answerable {at}")
    return "\n".join([*lines, ""])


def counted(number: int, noun: str) -> str:
    """As in "1 case" and "2 cases"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(case: Mapping[str, Any]) -> str:
    given = case["input"] if isinstance(case["input"], str) else case["input"][-1]["content"]
    text = " ".join(given.split())
    return f"{text[:60]}{'…' if len(text) > 60 else ''}  should get {_json(case['answer'])}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def text_picture(points: Sequence[Point]) -> str:
    """A bar of coverage for each minimum accuracy, with the accuracy of what was answered beside it."""
    lines = ["asked  coverage" + " " * (BAR - 1) + "accuracy"]
    for point in points:
        bar = "█" * round(point.coverage * BAR)
        below = point.accuracy is not None and point.accuracy * 100 < point.asked
        accuracy = "   –" if point.accuracy is None else f"{point.accuracy:5.1%}{' below' if below else ''}"
        lines.append(f"{point.asked:5}  {bar:<{BAR}} {point.coverage:6.1%}  {accuracy}")
    return "\n".join(lines)


def svg_picture(points: Sequence[Point], title: str) -> str:
    """The same as an SVG drawing: asked from left to right, coverage and accuracy from 0 to 100 %."""
    left, top, width, height = 60, 50, 480, 240

    def place(asked: float, share: float) -> str:
        return f"{left + width * asked / 100:.1f},{top + height * (1 - share):.1f}"

    grid = "".join(
        f'<line x1="{left}" x2="{left + width}" y1="{top + height * (1 - share / 100):.1f}" '
        f'y2="{top + height * (1 - share / 100):.1f}" stroke="#ddd"/>'
        f'<text x="{left - 8}" y="{top + height * (1 - share / 100) + 4:.1f}" '
        f'text-anchor="end">{share} %</text>'
        for share in range(0, 101, 25)
    )
    ticks = "".join(
        f'<text x="{left + width * point.asked / 100:.1f}" y="{top + height + 18}" '
        f'text-anchor="middle">{point.asked}</text>'
        for point in points
        if point.asked not in (85, 99)
    )
    answered = [point for point in points if point.accuracy is not None]
    coverage = " ".join(place(point.asked, point.coverage) for point in points)
    accuracy = " ".join(place(point.asked, point.accuracy or 0.0) for point in answered)
    asked = f"{place(0, 0)} {place(100, 1)}"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 350" '
        'font-family="sans-serif" font-size="12">'
        '<rect width="600" height="350" fill="#fff"/>'
        f'<text x="{left}" y="24" font-size="15">{escape(title)}</text>'
        f"{grid}{ticks}"
        f'<text x="{left + width / 2}" y="{top + height + 40}" '
        'text-anchor="middle">minimum accuracy asked</text>'
        f'<polyline points="{asked}" fill="none" stroke="#999" stroke-dasharray="4 4"/>'
        f'<polyline points="{coverage}" fill="none" stroke="#1f77b4" stroke-width="2"/>'
        f'<polyline points="{accuracy}" fill="none" stroke="#d62728" stroke-width="2"/>'
        f'<text x="{left + 10}" y="{top + height - 26}" fill="#1f77b4">coverage</text>'
        f'<text x="{left + 10}" y="{top + height - 10}" fill="#d62728">accuracy of what was answered</text>'
        "</svg>\n"
    )
