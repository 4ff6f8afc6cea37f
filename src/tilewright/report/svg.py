"""A drawing in SVG, element by element: well-formed and escaped by construction, readable on light and on dark."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tilewright.report.palette import Colour, hexadecimal

WIDTH = 480  # of every drawing's view box: one that is shown 375 pixels wide still has letters of 9
FONT = 12
LETTER = 0.56 * FONT  # the width that a letter takes, about


class Drawing:
    """An ``svg`` element, to which shapes are added; its height is what they need. ``name`` is read out for it."""

    def __init__(self, name: str) -> None:
        self.height = 0.0
        self.root = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "role": "img",
                "aria-label": name,
                "font-family": "system-ui, sans-serif",
                "font-size": str(FONT),
                "fill": "currentColor",
            },
        )

    def add(
        self, tag: str, text: str | None = None, parent: ET.Element | None = None, /, **attributes: object
    ) -> ET.Element:
        """A new element: ``stroke_width=1`` becomes ``stroke-width="1"``."""
        values = {name.rstrip("_").replace("_", "-"): _plain(value) for name, value in attributes.items()}
        element = ET.SubElement(self.root if parent is None else parent, tag, values)
        element.text = text
        return element

    def say(self, x: float, y: float, text: str, *, anchor: str = "start", **attributes: object) -> None:
        """A line of text whose letters stand on ``y``."""
        self.add("text", text, x=x, y=y, text_anchor=anchor, **attributes)
        self.height = max(self.height, y + FONT / 3)

    def box(
        self, x: float, y: float, width: float, height: float, fill: Colour | str, title: str = "", **more: object
    ) -> None:
        """A rectangle; ``title`` is what a pointer over it shows."""
        colour = fill if isinstance(fill, str) else hexadecimal(fill)
        element = self.add("rect", x=x, y=y, width=width, height=height, fill=colour, **more)
        if title:
            self.add("title", title, element)
        self.height = max(self.height, y + height)

    def __str__(self) -> str:
        self.root.set("viewBox", f"0 0 {WIDTH} {_plain(self.height + 2)}")
        return ET.tostring(self.root, encoding="unicode")


def _plain(value: object) -> str:
    """A number at a tenth of a unit, as few letters as say it."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
