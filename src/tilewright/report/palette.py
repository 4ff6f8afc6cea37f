"""Colours that people with any colour vision can tell apart, for terminals and pages.

Parts of a whole have those of Okabe and Ito, "Color Universal Design" (2008); what is ordered, such as waves, a ramp
from dark blue to yellow whose lightness rises evenly, after Nunez, Anderton and Renslow, "Optimizing colormaps with
consideration for color vision deficiency" (PLoS ONE 13(7), 2018).
"""

from __future__ import annotations

Colour = tuple[int, int, int]

PARTS: tuple[Colour, ...] = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0))
_RAMP: tuple[Colour, ...] = (
    (0, 50, 110),
    (58, 80, 110),
    (112, 113, 115),
    (162, 149, 118),
    (212, 188, 98),
    (255, 232, 80),
)


def ramp(step: int, steps: int) -> Colour:
    """The colour of ``step`` of ``steps``, from 0: dark to light."""
    place = (len(_RAMP) - 1) * step / max(1, steps - 1)
    below = min(int(place), len(_RAMP) - 2)
    low, high = _RAMP[below], _RAMP[below + 1]
    red, green, blue = (round(a + (b - a) * (place - below)) for a, b in zip(low, high, strict=True))
    return red, green, blue


def ink_on(colour: Colour) -> Colour:
    """Black or white, whichever has the higher contrast with it."""
    return (0, 0, 0) if contrast(colour, (0, 0, 0)) > contrast(colour, (255, 255, 255)) else (255, 255, 255)


def contrast(a: Colour, b: Colour) -> float:
    """The contrast ratio of two colours, 1 to 21 (WCAG 2.2, "contrast ratio" and "relative luminance")."""
    lighter, darker = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Colour) -> float:
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in (c / 255 for c in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def hexadecimal(colour: Colour) -> str:
    """As pages and terminals write it, such as ``#0072b2``."""
    return "#{:02x}{:02x}{:02x}".format(*colour)
