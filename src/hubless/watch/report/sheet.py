"""The page of a report: HTML around texts and charts, in one file that needs nothing else."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

from hubless.watch.report.drawing import Drawing, themes

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
"""Whatever stands in the texts, the page loads nothing."""


def text(value: object) -> str:
    """Text that is nothing but text on a page."""
    return html.escape(str(value))


def section(title: str, *parts: str) -> str:
    """A heading and what stands below it; nothing where nothing does."""
    body = "".join(parts)
    return f"<section><h2>{text(title)}</h2>{body}</section>" if body else ""


def paragraph(sentences: str, kind: str = "") -> str:
    """Some sentences; nothing where there are none."""
    return f'<p class="{kind}">{text(sentences)}</p>' if sentences else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, texts: Sequence[int] = ()) -> str:
    """A table whose first column names its rows; columns are numbers but for `texts`."""
    if not rows:
        return ""

    def kind(place: int) -> str:
        return "text" if place == 0 or place in texts else "number"

    top = "".join(f'<th class="{kind(at)}">{text(name)}</th>' for at, name in enumerate(head))
    body = []
    for first, *others in rows:
        cells = (f'<td class="{kind(at)}">{text(cell)}</td>' for at, cell in enumerate(others, 1))
        body.append(f"<tr><th>{text(first)}</th>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def folded(summary: str, body: str) -> str:
    """What is shown to whoever asks; nothing where there is nothing."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>" if body else ""


def image(path: Path, title: str) -> str:
    """A picture that stands in the page itself."""
    data = base64.b64encode(path.read_bytes()).decode()
    source = f"data:image/svg+xml;base64,{data}"
    return f'<div class="card"><h3>{text(title)}</h3><img src="{source}" alt="{text(title)}"></div>'


class Charts:
    """The charts of a page, each with its place in it."""

    def __init__(self) -> None:
        self.drawings: dict[str, Drawing] = {}

    def cards(self, drawings: Sequence[Drawing | None]) -> str:
        """Places for charts, side by side where there is room."""
        cards = []
        for drawing in drawings:
            if drawing is None:
                continue
            name, number = drawing.name, 1
            while name in self.drawings:
                number += 1
                name = f"{drawing.name}-{number}"
            self.drawings[name] = drawing
            cards.append(
                f'<div class="card"><h3>{text(drawing.title)}</h3>'
                f'<div class="chart" data-chart="{text(name)}" role="img" '
                f'aria-label="{text(drawing.title)}"></div></div>'
            )
        return f'<div class="charts">{"".join(cards)}</div>' if cards else ""

    def save(self, folder: Path) -> None:
        """Write every chart as a PNG file; the first, the main metric, against everything."""
        folder.mkdir(parents=True, exist_ok=True)
        for place, (name, drawing) in enumerate(self.drawings.items()):
            for file, png in drawing.pictures(name, all_axes=place == 0).items():
                (folder / file).write_bytes(png)

    def script(self) -> str:
        """What draws them: Vega's own code once, then the charts as data."""
        if not self.drawings:
            return ""
        import vl_convert

        here = Path(__file__)
        charts = {
            name: {"rows": drawing.data(), "specs": drawing.specs()}
            for name, drawing in self.drawings.items()
        }
        data = json.dumps({"themes": themes(), "charts": charts}, allow_nan=False)
        own = here.with_name("report.js").read_text(encoding="utf-8")
        bundle = vl_convert.javascript_bundle(own).replace("</script", r"<\/script")
        return (
            f'<script type="application/json" id="data">{_inert(data)}</script>'
            f'<script type="module">{bundle}</script>'
        )


def _inert(document: str) -> str:
    """JSON in which nothing can end a script, or start a comment.

    >>> _inert('{"name": "</script>"}')
    '{"name": "\\\\u003c/script\\\\u003e"}'
    """
    for letter in "<>&":
        document = document.replace(letter, f"\\u{ord(letter):04x}")
    return document


def whole(title: str, sections: Sequence[str], charts: Charts, pictures: str) -> str:
    """The whole page."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    without = f"The charts need JavaScript{pictures and f'; as pictures they are in {pictures}'}."
    note = f'<noscript><p class="note">{text(without)}</p></noscript>' if charts.drawings else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}</style></head><body>"
        f"<h1>{text(title)}</h1>{note}{''.join(sections)}{charts.script()}</body></html>\n"
    )
