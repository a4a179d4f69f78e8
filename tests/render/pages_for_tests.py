"""A page taken apart by the standard library's parser."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """Tags that were opened, what they hold, and whether they close in order."""

    VOID = frozenset({"meta", "br", "line", "rect", "polyline", "img", "input", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def is_inert(self) -> bool:
        """Whether it runs nothing and loads nothing from anywhere."""
        acts = {"script", "link", "img", "iframe", "object", "embed", "form"} & set(self.tags)
        names = {name for name, _ in self.attributes}
        return not acts and not any(name in ("src", "href") or name[:2] == "on" for name in names)
