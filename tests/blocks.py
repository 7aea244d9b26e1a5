# SPDX-License-Identifier: Apache-2.0
"""What readers copy from our pages: README.md, the EXAMPLES of dcpfs(1) and tools/python/README.md.

mount/pages.py runs the commands and python/readme.py the Python, both in a fresh directory, where DATA stands for the
checkpoints of the reader. A block that neither runs is an error.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
README, MAN, PYTHON = "README.md", "tools/dcpfs.1", "tools/python/README.md"
DATA = "/data/"
SHELL = ("console", "sh")  # commands after "$ " and what they print; commands alone
# Which Python runs a chapter's Python: where numpy is, or one of these packages. Chapters of Composer are compiled only:
# composer_proof.py calls the same functions.
CHAPTERS = {
    "numpy": {(README, "Load it into a job"), (PYTHON, "dcpfs for Python"), (PYTHON, "Writing")},
    "torch": {(README, "A Hugging Face model, without converting it"), (PYTHON, "torch"),
              (PYTHON, "transformers, accelerate, Lightning")},
    "paddle": {(PYTHON, "Paddle")},
    "composer": {(PYTHON, "Composer")}}


def blocks(page):
    """[(chapter, language, text)]; the language of what is only to be looked at is ""."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == MAN:
        examples = re.search(r"^\.Sh EXAMPLES\n(.*?)^\.Sh ", text, re.M | re.S)[1].replace("\\e", "\\")
        return [("EXAMPLES", "console" if b.startswith("$ ") else "", b)
                for b in re.findall(r"^\.Bd -literal.*?\n(.*?)^\.Ed$", examples, re.M | re.S)]
    found = []
    for chapter in re.split(r"^##? ", text, flags=re.M)[1:]:
        title = chapter.split("\n")[0]
        found += [(title, language, b) for language, b in re.findall(r"^```(\w*)\n(.*?)^```$", chapter, re.M | re.S)]
        plain = re.sub(r"^```.*?^```$", "", chapter, flags=re.M | re.S)
        found += [(title, "", b) for b in re.findall(r"(?:^    .*\n)+", plain, re.M)]
    return found


def unknown():
    """The blocks that nothing runs, though they can be copied."""
    run = set().union(*CHAPTERS.values())
    command = re.compile(r"^ *(\$ |>>> |(dcp\w+|mpirun|torchrun|pip|import|from) )", re.M)
    return [f"{page}, {chapter}: {text}" for page in (README, MAN, PYTHON) for chapter, language, text in blocks(page)
            if not (language in (*SHELL, "dcpl") or language == "python" and (page, chapter) in run
                    or not language and not command.search(text))]
