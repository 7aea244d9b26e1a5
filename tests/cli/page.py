# SPDX-License-Identifier: Apache-2.0
"""Pages of dcpfs as tests read them."""
import html.parser
import re

from cli import check

VOID = {"meta", "input"}


class Page(html.parser.HTMLParser):
    """Elements that are open, everything that names something elsewhere, and texts of scripts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.away, self.scripts, self.handlers = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        self.away += [v for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]
        self.handlers += [k for k, v in attrs if k.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        check(self.open and self.open[-1] == tag, f"</{tag}> ends {self.open[-1:]}")
        if self.open:
            self.open.pop()

    def handle_data(self, text):
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += text


def has_policy(got):
    return any(t == "meta" and "default-src 'none'" in a.get("content", "") for t, a in got.seen)


def names_elsewhere(text):
    return re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text.split("<script type")[0])
