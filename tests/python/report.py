"""Reads a page of `nereid perf --html` tag by tag: what is opened is closed, and nothing is fetched or run."""

import re
import sys
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.counts = {}
        self.ids = set()

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "i"}, tag
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name)
            assert name not in {"src", "href", "style", "srcset"}, (tag, name, value)
            assert value is not None, (tag, name)
            if name in {"points", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height"} and tag != "meta":
                assert re.fullmatch(r"[-0-9., ]*", value), (tag, name, value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open, self.getpos())
        self.open.pop()


text = open(sys.argv[1], encoding="utf-8").read()
page = Page()
page.feed(text)
page.close()
assert not page.open, page.open
assert text.startswith("<!DOCTYPE html>")
style = text[text.index("<style>"):text.index("</style>")]
assert style.count("{") == style.count("}") > 10
assert "url(" not in style and "@import" not in style
for part in ("prefers-color-scheme: dark", "@media print"):
    assert part in style, part
for tag in ("html", "head", "title", "body", "main", "h1", "footer"):
    assert page.counts[tag] >= 1, tag
print(f"{page.counts['svg']} plots, {page.counts['details']} details, {page.counts['table']} tables")
