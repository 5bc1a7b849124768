"""For the reference: examples in docstrings become blocks of code.

They stand there as doctests do, a paragraph that starts with `>>>`, without a heading of their own.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_PARAGRAPHS = re.compile(r"\n\s*\n")


class Doctests(griffe.Extension):
    """Fences what starts with a prompt, before docstrings are read as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with each paragraph that starts with a prompt as a block of code.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Adds.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return "\n\n".join(
        f"```pycon\n{part}\n```" if part.startswith(">>> ") else part
        for part in _PARAGRAPHS.split(text)
    )
