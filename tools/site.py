#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site of plain HTML: every page of Markdown, the manual pages, and the public headers.

usage: site.py OUT [PROGRAM]    PROGRAM: a dcpfs that was built, for a manual page a verb
       site.py --check          only follow the links of the pages of Markdown

Needs python3-markdown and mandoc (tools/packages.sh site) but for --check. Every link inside the site is followed, also to headings: a link
that leads nowhere is an error. Neither this program nor the site needs a network.
"""
import html
import json
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import urllib.parse

import man

try:
    import markdown
except ImportError:
    markdown = None

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOT = ("tests/golden/", "tests/bad/")  # checkpoints of others, which have pages of their own
HEADERS = ("tools/load/dcpload.h", "tools/save/dcpsave.h", "core/checkpoint/dcpfs_abi.h")
STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 0 1rem 4rem; color: #222; background: #fff }
nav { border-bottom: 1px solid #8888; margin-bottom: 1rem; padding: .5rem 0 } nav a { margin-right: 1rem }
pre { overflow-x: auto; padding: .6rem; background: #8881 } code { font-size: .92em } table { border-collapse: collapse; display: block; overflow-x: auto }
td, th { border: 1px solid #8886; padding: .2rem .5rem; text-align: left; vertical-align: top } img { max-width: 100% } a { color: #06c }
table.head, table.foot { width: 100%; display: table } table.head td, table.foot td { border: 0 } dd { margin-left: 2rem }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } a { color: #6bf } }
"""


def sources(pattern):
    if not (ROOT / ".git").exists():  # an archive of the sources
        found = (f.relative_to(ROOT).as_posix() for f in ROOT.rglob(pattern))
        return [name for name in found if not name.startswith((*NOT, "build"))]
    listed = subprocess.run(["git", "ls-files", "-z", pattern], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and not name.startswith(NOT)]


def place(name):
    """Where the page of a source is: README.md of a folder is its index."""
    return re.sub(r"(^|/)README\.md$", r"\1index.html", name) if name.endswith("README.md") else re.sub(r"\.(md|h)$", r".html", name)


def slug(text, separator="-"):
    """The anchor of a heading, as the forge gives it: pages are read there, too."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


def page(name, title, body, pages):
    up = "../" * name.count("/")
    links = "".join(f'<a href="{up}{at}">{html.escape(label)}</a>' for label, at in pages)
    return (f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
            f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n<nav>{links}</nav>\n{body}\n</html>\n")


def relink(name, body, known, wanted):
    """Links to sources become links to their pages; other files of the repository are copied beside them."""
    def to(m):
        target, hash_, anchor = html.unescape(m[2]).partition("#")
        if not target or urllib.parse.urlsplit(target).scheme:
            return m[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), urllib.parse.unquote(target)))
        if path not in known:
            wanted.add((name, path))
            return m[0]
        return f'{m[1]}="{posixpath.relpath(place(path), posixpath.dirname(name) or ".")}{hash_}{anchor}"'
    return re.sub(r'(href|src)="([^"]*)"', to, body)


def manual(program):
    """(name, HTML) of dcpfs(1), and of each verb where there is a program."""
    text = {"dcpfs": (ROOT / "tools" / "dcpfs.1").read_text(encoding="utf-8")}
    if program:
        told = subprocess.run([program, "help", "--json"], capture_output=True, text=True, check=True).stdout
        for verb in json.loads(told)["verbs"]:
            text["dcpfs-" + verb["name"]] = man.page(text["dcpfs"], verb["name"], verb["what"])
    for name, source in text.items():
        done = subprocess.run(["mandoc", "-T", "html", "-O", "fragment"], input=source, capture_output=True, text=True, check=True)
        # Pages of this manual are linked, those of the system are not.
        body = re.sub(r'<a class="Xr"[^>]*>(.*?)\(1\)</a>|<a class="Xr">(.*?)\(1\)</a>',
                      lambda m: f'<a href="{m[1] or m[2]}.1.html">{m[1] or m[2]}(1)</a>' if (m[1] or m[2]) in text else f"{m[1] or m[2]}(1)", done.stdout)
        yield name, body


def check_links(out):
    """Links that lead nowhere: to a file that is missing, or a heading that the page lacks."""
    text = {p.relative_to(out).as_posix(): p.read_text(encoding="utf-8") for p in out.rglob("*.html")}
    for name, body in text.items():
        for link in re.findall(r'(?:href|src)="([^"]*)"', body):
            target, _, anchor = html.unescape(link).partition("#")
            if urllib.parse.urlsplit(target).scheme:
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), urllib.parse.unquote(target))) if target else name
            if path not in text and not (out / path).is_file():
                yield f"{name}: {link} leads nowhere"
            elif anchor and f'id="{anchor}"' not in text.get(path, ""):
                yield f"{name}: {link}: {path} has no heading of that name"


def check_sources():
    """The same for the sources, where headings have the anchors that the forge gives them."""
    text = {name: re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.S) for name in sources("*.md")}
    anchors = {name: {slug(x) for x in re.findall(r"^#+ (.*)$", (ROOT / name).read_text(encoding="utf-8"), re.M)} for name in text}
    for name, body in text.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", body):
            target, _, anchor = link.partition("#")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) if target else name
            if urllib.parse.urlsplit(target).scheme:
                continue
            if not (ROOT / path).exists():
                yield f"{name}: {link} leads nowhere"
            elif anchor and anchor not in anchors.get(path, ()):
                yield f"{name}: {link}: {path} has no heading of that name"


def main(out, program=None):
    if out == "--check":
        wrong = sorted(check_sources())
        print("\n".join(wrong) or "site.py: every link leads somewhere")
        return bool(wrong)
    if not markdown or not shutil.which("mandoc"):
        sys.exit("site.py: python3-markdown or mandoc is missing: tools/packages.sh site")
    out = pathlib.Path(out)
    if out.exists() and any(out.iterdir()) and not (out / "man" / "dcpfs.1.html").exists():
        sys.exit(f"site.py: {out} has files, but no site: it is not replaced")
    shutil.rmtree(out, ignore_errors=True)
    known = set(sources("*.md")) | set(HEADERS)
    pages = [("dcpfs", "index.html"), ("Manual", "man/dcpfs.1.html"), ("Python", "tools/python/index.html"), ("Formats", "core/format/index.html"),
             ("Operations", "tools/service/index.html"), ("C", "tools/load/dcpload.html"), ("Changes", "CHANGELOG.html")]
    made, wanted = {}, set()
    for name in sorted(known):
        text = (ROOT / name).read_text(encoding="utf-8")
        if name.endswith(".h"):
            made[place(name)] = (posixpath.basename(name), f"<h1>{posixpath.basename(name)}</h1><pre>{html.escape(text)}</pre>")
            continue
        parser = markdown.Markdown(extensions=["tables", "fenced_code", "sane_lists", "toc"], extension_configs={"toc": {"slugify": slug}})
        body = relink(name, parser.convert(text), known, wanted)
        title = re.search(r"^# (.*)$", text, re.M)
        made[place(name)] = (title[1] if title else name, body)
    for name, body in manual(program):
        made[f"man/{name}.1.html"] = (f"{name}(1)", body)
    for name, (title, body) in made.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(page(name, title, body, pages), encoding="utf-8")
    for name, path in wanted:
        if (ROOT / path).is_file():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, out / path)
    wrong = sorted(check_links(out))
    print("\n".join(wrong) or f"site.py: {len(made)} pages, every link leads somewhere")
    return bool(wrong)


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("\n".join(__doc__.split("\n")[2:4]))
    sys.exit(main(*sys.argv[1:]))
