"""HTML and SVG, from text that other users chose. Pure."""

from __future__ import annotations

import html


class Html(str):
    """Text that is HTML already."""


def element(tag: str, *content: str, **attributes: str) -> Html:
    """An element. What is not HTML already is escaped. ``aria_label`` is aria-label, ``class_`` is class.

    An attribute without a value is left out.
    """
    words = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value)
    said = "".join(f' {name}="{html.escape(value)}"' for name, value in words)
    inner = "".join(each if isinstance(each, Html) else html.escape(each) for each in content)
    return Html(f"<{tag}{said}>{inner}</{tag}>")
