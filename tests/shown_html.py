"""What a notebook is given to show: read it as a browser would, and find what should not be there."""

from __future__ import annotations

import re
from html.parser import HTMLParser

ALLOWED = {"b", "details", "div", "img", "pre", "span", "summary"}
ALONE = {"img"}  # has no end
ATTRIBUTES = {"alt", "src", "style", "title"}


class Shown(HTMLParser):
    """Text and pictures of balanced HTML that needs nothing from outside; else an AssertionError."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.open = "", []
        self.pictures: list[str] = []
        self.titles: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], "not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert tag in ALLOWED and given.keys() <= ATTRIBUTES, (tag, given)
        assert not re.search(r"url|expression|@import|//", given.get("style") or ""), given
        if tag == "img":
            assert (given["src"] or "").startswith("data:image/png;base64,") and given["alt"]
            self.pictures.append(given["src"] or "")
        self.titles += [given["title"] or ""] if "title" in given else []
        self.open += [tag] if tag not in ALONE else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() or "pre" in self.open:  # a browser shows no line break between two elements
            self.text += data
