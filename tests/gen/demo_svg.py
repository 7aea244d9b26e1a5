#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw tools/demo.svg, the picture at the top of README.md: a terminal in which commands are typed and print.

    DCPFS_PROGRAM=build/default/tools/dcpfs python3 tests/gen/demo_svg.py >tools/demo.svg

The commands run on a golden checkpoint; mount/pages.py checks that the picture is still what they print. Needs FUSE, numpy
and jq. Everything is visible from the beginning where animations are not played or not wanted.
"""
import html
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "mount"))
import pages

COMMANDS = """\
ls -AC tests/golden/dcp-fsdp2/ckpt/step-20       # saved by four FSDP ranks
dcpfs tests/golden/dcp-fsdp2/ckpt mnt            # mounted; nothing is converted
ls -C mnt mnt/latest
cd mnt/latest
od -A d -t f4 -j 32 -N 16 raw/model.layers.0.input_layernorm.weight.bin
python3 -c 'import numpy; print(numpy.load("npy/model.patch.bias.npy"))'
cat objects/train.info.json
jq -c '.tensors[2].pieces[]' index.json | head -n 2
ls -C shard/tp4:llama/1                          # rank 1 of a tp4 job, cut on demand
ls -C hf
""".splitlines()

LINE, TOP, LEFT, WIDTH = 19, 52, 16, 780
KEY, PAUSE, READ = 0.03, 0.4, 0.9  # seconds: to type a character, before the output, to read it

STYLE = """\
text{font-size:14px;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d5dae0;white-space:pre}
.title{fill:#8b949e;text-anchor:middle}.p{fill:#7ee787}.c{fill:#fff}.n{fill:#8b949e}
@media(prefers-reduced-motion:no-preference){text.l{animation:a 1ms step-end backwards}
tspan.k{animation:a 1ms step-end backwards}}
@keyframes a{from{visibility:hidden}}
"""


def typed(command, at):
    """A command as words that appear after each other, and the time when all are there."""
    code, note = command, ""
    if "  #" in command:
        code, note = command[:command.index("#")], command[command.index("#"):]
    spans = []
    for kind, text in (("c", code), ("n", note)):
        for word in re.findall(r"\S+\s*", text):
            spans.append(f'<tspan class="k {kind}" style="animation-delay:{at:.2f}s">{html.escape(word, quote=False)}</tspan>')
            at += KEY * len(word)
    return "".join(spans), at


def main():
    lines, at = [], 0.5
    with pages.World("demo") as world:
        (world.at / "mnt").mkdir()
        for command in COMMANDS:
            start = at
            spans, at = typed(command, at + PAUSE)
            lines.append((start, f'<tspan class="p">$ </tspan>{spans}'))
            at += PAUSE
            output, _ = world.run(command)
            lines += [(at, html.escape(line, quote=False)) for line in output]
            at += READ if output else 0
    height = TOP + LINE * len(lines) + 4
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">')
    print("<title>A checkpoint of four ranks, mounted, and read with ls, od, numpy and jq</title>")
    print(f"<style>\n{STYLE}</style>")
    print(f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#0d1117"/>')
    for x, colour in ((20, "#ff5f57"), (40, "#febc2e"), (60, "#28c840")):
        print(f'<circle cx="{x}" cy="18" r="6" fill="{colour}"/>')
    print(f'<text class="title" x="{WIDTH // 2}" y="23">dcpfs</text>')
    print('<g xml:space="preserve">')
    for i, (when, text) in enumerate(lines):
        print(f'<text class="l" x="{LEFT}" y="{TOP + LINE * i}" style="animation-delay:{when:.2f}s">{text}</text>')
    print("</g>\n</svg>")


if __name__ == "__main__":
    main()
