"""The structure of an HTML text: its elements in order, its texts, and what it would fetch."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br"}


class Structure(HTMLParser):
    """The elements of a page, each closed where it must be, and its texts outside of style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "srcset", "action")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data.strip())

    def has(self, text: str) -> bool:
        return any(text in each for each in self.texts)
