#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every command of README.md, of the man page's EXAMPLES and of tools/python/README.md runs in a fresh directory, and prints what
the page shows; so do those of the picture of the demo, tools/demo.svg, which gen/demo_svg.py draws by the same class."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree

import lib

sys.path.append(str(lib.ROOT / "tests"))
import blocks  # noqa: E402

TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
LIMIT = 60000  # bytes of the picture: a README is read on slow lines, too
# Beginnings of commands that are not run here, and what runs them.
ELSEWHERE = {
    "./tools/packages.sh build optional": "tests/run.sh, which installs more",
    "meson setup build/release": "tools/demo.sh",
    "ninja -C build/release": "load/install.py, of the build that is tested",
    "python3 -m venv": "tests/run.sh: pip downloads setuptools",
    "./tools/demo.sh": "a person: it installs packages",
    "./tests/run.sh": "a person: it runs this test",
    "vllm serve": "served.py",
    "hf upload": "uploaded.py",
}
# Programs that a machine may not have, or that would change it. load/mpi.py and load/launchers.py run the real launchers.
LAUNCH = """\
while [ "${1#-}" != "$1" ]; do case $1 in -np | --nproc-per-node) n=$2; shift 2 ;; *) shift ;; esac; done
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port bad=0
for r in $(seq 0 $((n - 1))); do RANK=$r LOCAL_RANK=$r "$@" & pids="$pids $!"; done
for p in $pids; do wait $p || bad=1; done
exit $bad
"""
STANDINS = {
    "python3": f'exec "{sys.executable}" "$@"\n',  # a link would lose its packages
    "mpirun": LAUNCH,
    "torchrun": LAUNCH,
}


class World:
    """A fresh directory, which looks like a clone of the project, with checkpoints that stand for those of the reader."""

    def __init__(self, name):
        self.at = lib.fresh(name)
        data, programs = self.at / "data", self.at / "bin"
        for step, golden in ("1000", "step-10"), ("2000", "step-20"):
            lib.copy(lib.GOLDEN / "dcp-fsdp2" / "ckpt" / golden, data / "run1" / f"step-{step}")
        (data / "llama").mkdir()
        (data / "llama" / "config.json").write_text('{"model_type": "llama"}')
        (self.at / "tests").symlink_to(lib.ROOT / "tests")
        programs.mkdir()
        own = pathlib.Path(shutil.which(lib.PROGRAM)).parent
        for program in ("dcpfs", "dcpload", "dcpsave"):
            (programs / program).symlink_to(own / program)
        for program, text in STANDINS.items():
            (programs / program).write_text(f"#!/bin/sh\n{text}")
            (programs / program).chmod(0o755)
        self.before = ""  # the commands that changed the directory
        self.env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "80", "TZ": "UTC", "LC_ALL": "C.UTF-8",
                    "HOME": str(self.at), "DCPFS_CACHE": str(lib.WORK / "pages")}

    def run(self, command):
        """What a command prints, as lines in which all times are the same, and its exit code."""
        done = lib.run("bash", "-c", self.before + command.replace(blocks.DATA, f"{self.at}/data/"), cwd=self.at, env=self.env)
        if command.startswith("cd "):
            self.before += command + " && "
        text = (done.stdout + done.stderr).replace(f"{self.at}/data/", blocks.DATA).expandtabs()
        return [TIME.sub("2026-01-01 12:00:00", line.rstrip()) for line in text.split("\n")][:-1], done.returncode

    def __enter__(self):
        return self

    def __exit__(self, *what):
        if lib.mounted(self.at / "mnt"):
            subprocess.run([lib.PROGRAM, "umount", str(self.at / "mnt")], check=True)


def whole(command):
    return subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0 and not command.endswith("\\")


def commands(text, language):
    """[(command, what the page shows that it prints, or None)]"""
    found = []
    for line in text.rstrip("\n").split("\n"):
        if found and not whole(found[-1][0]):
            found[-1][0] += "\n" + line
        elif language == "sh" and line and not line.startswith("#"):
            found.append([re.sub(r"\s+# .*", "", line), None])
        elif line.startswith("$ "):
            found.append([line[2:], []])
        elif found and language != "sh":
            found[-1][1].append(TIME.sub("2026-01-01 12:00:00", line.rstrip()))
    return found


def try_all(world, shown, exact=True):
    """Run commands in their order. @exact: those after which nothing is shown print nothing."""
    left = dict(ELSEWHERE)
    for command, want in shown:
        lib.case(command)
        elsewhere = [begin for begin in ELSEWHERE if command.startswith(begin)]
        if elsewhere:
            left.pop(elsewhere[0], None)
            continue
        got, code = world.run(command)
        lib.check(code == 0, f"exit {code}: {got}")
        if want or exact and want is not None:
            lib.equal(got, want, "what it prints")
    return left


def commands_of_the_readme_work():
    with World("readme") as world:
        shown = []
        for n, (_, language, text) in enumerate(blocks.blocks(blocks.README)):
            if language == "dcpl":
                (world.at / f"{n}.dcpl").write_text(text)
                shown.append([f"dcpfs plan /data/run1 --layout {n}.dcpl", None])
            elif language in blocks.SHELL:
                shown += commands(text, language)
        lib.equal(try_all(world, shown), {}, "commands of ELSEWHERE that the page does not have")
    lib.check(len(shown) > 15, f"only {len(shown)} commands were found")


def commands_of_the_manual_work():
    with World("man") as world:
        shown = [c for _, language, text in blocks.blocks(blocks.MAN) if language for c in commands(text, language)]
        try_all(world, shown, exact=False)
    lib.check(len(shown) > 5, f"only {len(shown)} commands were found")


def commands_of_the_package_work():
    with World("python") as world:
        shown = [c for _, language, text in blocks.blocks(blocks.PYTHON) if language in blocks.SHELL for c in commands(text, language)]
        try_all(world, shown)
    lib.check(shown, "no commands were found")


def every_block_is_run():
    """Every block is run by a function above or by python/readme.py."""
    lib.equal(blocks.unknown(), [], "what nothing runs")


def the_picture_is_up_to_date():
    """The lines of text in tools/demo.svg."""
    path = lib.ROOT / "tools" / "demo.svg"
    lib.case("the file")
    lib.check(path.stat().st_size < LIMIT, f"is {path.stat().st_size} bytes")
    root = xml.etree.ElementTree.parse(path).getroot()
    lines = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text") if e.get("class") != "title"]
    with World("picture") as world:
        (world.at / "mnt").mkdir()
        shown = commands("\n".join(lines), "console")
        try_all(world, shown)
    lib.check(len(shown) > 6, f"only {len(shown)} commands were found")


if __name__ == "__main__":
    try:
        import numpy  # noqa: F401: README.md and the picture use it
    except ImportError:
        lib.replace_python("no numpy")
    lib.main(commands_of_the_readme_work, commands_of_the_manual_work, commands_of_the_package_work, every_block_is_run,
             the_picture_is_up_to_date)
