#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""By hand: pages of dcpfs report and plan in a real browser, light and dark. Screenshots, to be looked at, go to OUT.

usage: browser.py DCPFS OUT, by a Python that has playwright; CHROMIUM is its path (default: /usr/bin/chromium)
"""
import os
import pathlib
import struct
import sys
import time

from playwright.sync_api import sync_playwright

from cli import GOLDEN, OK, SCRATCH, check, equal, finish, run, write

OUT = pathlib.Path(sys.argv[2]).absolute()
HOSTILE = ["</script><script>document.title='run'</script>", "<!--<script>", "a\u202egnp.exe", "\"><img src=x onerror=\"document.title='run'\">", "t\tn\n",
           "'\"\\", "__proto__", "constructor.prototype", "\u2028", "nul\0nul", "<svg/onload=\"document.title='run'\">"]


def source(name, keys):
    for step, least in (1, 1.0), (2, 2.0):
        write(SCRATCH / name / f"step-{step}" / "model.safetensors",
              {k: ("F32", [1 + i % 7], struct.pack("<f", i if i % 5 else least) * (1 + i % 7)) for i, k in enumerate(keys)})
    return SCRATCH / name


def many(n):
    parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.gate_proj", "mlp.down_proj", "norm1", "norm2", "bias"]
    return [f"model.layers.{i}.{p}.weight" for i in range(n // 10) for p in parts]


def pages_work_in_a_browser(browser, name, scheme, rows, what="tensors", title="dcpfs report"):
    said = []
    page = browser.new_page(viewport={"width": 1300, "height": 1500}, color_scheme=scheme)
    page.on("console", lambda m: said.append(m.text))
    page.on("pageerror", lambda e: said.append(str(e)))
    page.on("dialog", lambda d: said.append("a dialog"))
    page.on("request", lambda r: said.append(r.url) if not r.url.startswith("file:///") else None)
    begun = time.monotonic()
    page.goto(f"file://{OUT}/{name}.html")
    seconds = time.monotonic() - begun
    elements = page.evaluate("document.querySelectorAll('.row').length")
    check(0 < elements < 100, f"{name}: {elements} rows are elements")
    check(page.inner_text("#count").startswith(f"{rows} of {rows} {what}"), f"{name}: {page.inner_text('#count')}")
    page.focus("#box")
    page.keyboard.press("End")
    equal(page.get_attribute("#box", "aria-activedescendant"), f"row{rows - 1}", f"{name}: End")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    equal(page.get_attribute("#box", "aria-activedescendant"), "row1", f"{name}: an arrow")
    page.screenshot(path=OUT / f"{name}-{scheme}.png", full_page=True)
    page.keyboard.press("/")
    page.keyboard.type("no such words")
    check(page.inner_text("#count").startswith("0 of "), f"{name}: search")
    page.keyboard.press("Escape")
    for order in "descending", "ascending":
        page.click("#head button >> nth=2" if what == "ranks" else "#head button >> nth=4")
        equal(page.evaluate("[...document.querySelectorAll('[aria-sort]')].map(e => e.ariaSort).join()"), order, f"{name}: sorting")
    equal((said, page.title()), ([], title), f"{name}: what the browser says")
    page.close()
    print(f"{name}, {scheme}: {(OUT / (name + '.html')).stat().st_size / 1e6:.1f} MB, opened in {seconds:.1f} s")


OUT.mkdir(parents=True, exist_ok=True)
pages = {"golden": (GOLDEN / "dcp-fsdp2" / "ckpt", "10"), "hostile": (source("hostile", HOSTILE), "1"),
         "1000": (source("1000", many(1000)), "1"), "100000": (source("100000", many(100000)), "1")}
LAYOUT = SCRATCH / "<svg onload=\"document.title='run'\">.dcpl"
LAYOUT.write_text("mesh a=4\n* replicate\n")
plans = {"plan-hostile": (source("<script>document.title='run'<b>", HOSTILE), LAYOUT, 4), "plan-1000": (SCRATCH / "1000", "fsdp1000", 1000),
         "plan-4096": (SCRATCH / "1000", "fsdp4096", 4096)}
with sync_playwright() as play:
    chromium = play.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"])
    for title, (top, against) in pages.items():
        equal(run("report", "--stats", "--against", against, top, "-o", OUT / f"{title}.html").returncode, OK, f"{title}: report")
        for colors in "light", "dark":
            pages_work_in_a_browser(chromium, title, colors, {"golden": 77, "hostile": len(HOSTILE), "1000": 1000, "100000": 100000}[title])
    for title, (top, layout, ranks) in plans.items():
        equal(run("plan", top, "1", "--layout", layout, "--html", OUT / f"{title}.html").returncode, OK, f"{title}: plan")
        for colors in "light", "dark":
            pages_work_in_a_browser(chromium, title, colors, ranks, "ranks", "dcpfs plan")
    chromium.close()
finish()
