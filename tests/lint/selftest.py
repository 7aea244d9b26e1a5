#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prove the guards: each is run on small made-up trees that break one rule, and must say so.

usage: selftest.py CC [NM AR]
"""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LIC = "/* SPDX-License-Identifier: Apache-2.0 */\n"
PY_LIC = "# SPDX-License-Identifier: Apache-2.0\n"

# A tree that every guard likes.
GOOD = {
    "core/base/a.h": LIC + "#pragma once\n#include <stdint.h>\n\nint dcp_a(uint32_t n);\n",
    "core/base/a.c": LIC + '#include "core/base/a.h"\n\nint dcp_a(uint32_t n)\n{\n\treturn (int)n;\n}\n',
    "core/store/index/index.c": LIC + '#include <sqlite3.h>\n\n#include "core/base/a.h"\n\nstatic int x;\n',
    "core/meson.build": "src = files('base/a.c', 'format/fam.c', 'store/index/index.c')\n",
    "tests/unit/meson.build": "unit_tests = {\n  'base': ['base/a'], # first\n  'store': ['store/it'],\n}\n",
    "tests/unit/base/a.c": LIC + '#include "tests/unit/t.h"\n',
    "tests/unit/store/it.c": LIC + "/*\n * The index.\n * covers: index/index, format/fam\n */\n",
    "tests/unit/t.h": LIC + "#pragma once\n",
    "tests/fuzz/fuzz_a.c": LIC,
    "tests/fuzz/targets": "# name max_len\na 64\n",
    "core/format/README.md": "## What it reads\n\n| from | covered | proved by |\n| --- | --- | --- |\n| a | all | `fam`: `dcp`, `base/a` |\n",
    "core/format/fam.c": LIC + '#include "core/base/a.h"\n\nconst int x = {\n\t.name = "fam",\n};\n',
    "tests/golden/dcp/manifest.json": "{}",
    "tests/x.sh": "#!/bin/sh\n" + PY_LIC + "mktemp -d /tmp/x.XXXXXX\n",
    "tools/packages.sh": "#!/bin/sh\n" + PY_LIC + "echo git\n",
    "tests/golden/dcp/notes.c": "TO" "DO // not ours\n",
    "build/junk.c": "// FIX" "ME\n",
    ".clang-format": (HERE.parent.parent / ".clang-format").read_text(),
}


def inc(line, file="core/base/a.h"):
    return {file: GOOD.get(file, LIC + "#pragma once\n") + line + "\n"}


# (what is wrong, guard, files that differ from GOOD (None: gone), what the report must say)
CASES = (
    ("core sees fs", "layers", inc('#include "fs/tree/tree.h"'), 'core/base/a.h:6: core/ may not include "fs/tree/tree.h"'),
    ("core sees tools", "layers", inc('# include "tools/out.h"'), "core/ may not include"),
    ("fs sees tools", "layers", inc('#include "tools/out.h"', "fs/tree/tree.h"), "fs/ may not include"),
    ("load sees fs", "layers", inc('#include "fs/tree/tree.h"', "tools/load/x.h"), "tools/load/ is a library and may not include"),
    ("a library sees a program", "layers", inc('#include "tools/out.h"', "tools/save/ranks/x.h"), "tools/save/ is a library and may not include"),
    ("a low floor sees a high one", "layers", inc('#include "core/store/index/index.h"'), "core/base is below core/store"),
    ("a low floor's folder sees a high one", "layers", inc('#include "core/store/index/index.h"', "core/base/d/x.h"),
     "core/base is below core/store"),
    ("private to a folder, not to its floor", "layers", inc('#include "core/base/d/d_int.h"'), "is private to core/base/d/"),
    ("a file on no floor", "layers", {"core/loose.c": LIC}, "core/loose.c: stands on no floor"),
    ("an unknown floor", "layers", {"core/cellar/x.c": LIC}, "stands on no floor"),
    ("include not from the root", "layers", inc('#include "a.h"'), "is not written from the project root"),
    ("include that climbs", "layers", inc('#include "core/base/../store/x.h"'), "climbs"),
    ("include of a source", "layers", inc('#include "core/base/b.c"'), "is not a header"),
    ("sqlite outside its owner", "layers", inc("#include <sqlite3.h>"), "<sqlite3.h> belongs to"),
    ("sqlite in quotes", "layers", inc('#include "sqlite3.h"'), "<sqlite3.h> belongs to"),
    ("fuse in a tool", "layers", inc("#include <fuse3/fuse_lowlevel.h>", "tools/main.h"), "belongs to fs/"),
    ("cuda outside its file", "layers", inc("#include <cuda.h>", "tools/load/plan.h"), "belongs to tools/load/"),
    ("openat2 outside the row of the file system", "layers", inc("#include <linux/openat2.h>", "core/store/x.h"), "belongs to core/origin/"),
    ("a descriptor outside the row of the file system", "layers", {"core/store/x.c": LIC + "int f(void)\n{\n\treturn fstat(0, 0);\n}\n"},
     "core/store/x.c:4: fstat( is known to core/origin/dir/ alone"),
    ("reads past the page cache in libdcpload", "layers", {"tools/load/x.c": LIC + "int f(void)\n{\n\treturn open(p, O_RDONLY | O_DIRECT);\n}\n"},
     "tools/load/x.c:4: | O_DIRECT is known to core/origin/dir/ alone"),
    ("reads past the page cache, the flag first", "layers", {"tools/load/x.c": LIC + "int f(void)\n{\n\treturn open(p, O_DIRECT | O_RDONLY);\n}\n"},
     "tools/load/x.c:4: O_DIRECT is known to core/origin/dir/ alone"),
    ("a library without an owner", "layers", inc("#include <png.h>"), "<png.h> has no owner"),
    ("a family sees another", "layers", inc('#include "core/format/megatron/megatron_int.h"', "core/format/dcp/x.h"), "dcp is a family and may not include"),
    ("a family of one file sees another", "layers", inc('#include "core/format/weights/files.h"', "core/format/npz.c"), "npz is a family and may not include"),
    ("another folder's private header", "layers", inc('#include "core/base/a_int.h"', "core/store/b.h"), "is private to"),
    ("a second private header", "layers", {"core/base/d/d_int.h": LIC, "core/base/d/e_int.h": LIC},
     "core/base/d: d_int.h and e_int.h; a folder has one private header at most"),
    ("a wide comment in a room that has none", "format", {"core/store/w.h": LIC + "#pragma once\n/* " + "wide " * 20 + "*/\n"},
     "core/store/w.h:3: comment of more than 100 columns"),
    ("no license in C", "files", {"core/base/a.h": "#pragma once\n"}, "core/base/a.h:1: first line is not"),
    ("no license in a script", "files", {"tests/x.sh": "#!/bin/sh\necho\n"}, "tests/x.sh:2: line is not"),
    ("no pragma once", "files", {"core/base/a.h": LIC + "int x;\n"}, "no #pragma once"),
    ("pragma once in a comment only", "files", {"core/base/a.h": LIC + "/*\n#pragma once\n*/\n"}, "no #pragma once"),
    ("include guard", "files", inc("#ifndef A_H\n#define A_H\n#endif"), "has an include guard"),
    ("a large file", "files", {"tests/big.bin": "x" * 1000001}, "tests/big.bin: 1000001 bytes"),
    ("701 lines", "files", {"core/base/b.c": LIC + "\n" * 699 + "int x;\n"}, "701 lines"),
    ("blanks at the end", "files", inc("int x; "), "core/base/a.h:6: blanks at the end"),
    ("indented with spaces", "files", inc("        int x;"), "core/base/a.h:6: indented with spaces"),
    ("space before tab", "files", inc(" \tint x;"), "space before a tab"),
    ("carriage return", "files", inc("int x;\r"), "carriage returns"),
    ("no newline at the end", "files", {"core/base/a.h": LIC + "#pragma once"}, "last line has no end"),
    ("line comment", "files", inc('const char *u = "http://x"; // why'), "core/base/a.h:6: // comment"),
    ("a number read by libc", "files", {"fs/b.c": LIC + "int x = atoi(s);\n"}, "fs/b.c:2: atoi() takes"),
    ("typedef of a struct", "files", inc("typedef struct x x_t;"), "core/base/a.h:6: typedef of a struct"),
    ("a static function of one word", "files", {"fs/b.c": LIC + "static __attribute__((cold)) int\nlook(int x)\n{\n}\n"},
     "fs/b.c:2: static look() is one word"),
    ("a static function of one word, its attribute last", "files", {"fs/b.c": LIC + "static void __attribute__((cold)) look(int x)\n{\n}\n"},
     "fs/b.c:2: static look() is one word"),
    ("a unit test of one word", "files", {"tests/unit/base/b.c": LIC + "static void refused(void **state)\n{\n}\n"}, "the test refused() is one word"),
    ("a test of one word", "files", {"tests/cli/b.py": PY_LIC + "def kept():\n    pass\n\n\nkept()\n"}, "the test kept() is one word"),
    ("a method of one word", "files", {"tests/python/b.py": PY_LIC + "class Keys:\n    def test_kept(self):\n        pass\n"}, "the test test_kept() is one word"),
    ("capitals in a name", "files", {"core/base/Big.c": LIC}, "file names are lower case"),
    ("stray header among the unit tests", "files", {"tests/unit/base/helper.h": LIC}, "a header is a helper's"),
    ("unfinished", "words", inc("/* TO" "DO: more */"), "core/base/a.h:6: unfinished"),
    ("unfinished, shouted", "words", {"README.md": "FIX" "ME\n"}, "README.md:1: unfinished"),
    ("machine path", "words", {"README.md": "see\n`/ho" "me/me/x`\n"}, "README.md:2: machine path"),
    ("machine path in a script", "words", {"tests/y.sh": "cd=/wo" "rk/main\n"}, "tests/y.sh:1: machine path"),
    ("source without a test", "units", {"core/base/b.c": LIC}, "core/base/b.c: no tests/unit/base/b.c"),
    ("a file split off, but with a header", "units", {"core/base/a_b.c": LIC, "core/base/a_b.h": LIC}, "core/base/a_b.c: no tests"),
    ("a file of a folder", "units", {"core/base/d/x.c": LIC}, "core/base/d/x.c: no tests/unit/base/d/x.c"),
    ("a file of a folder that has the name of a tested one", "units", {"core/base/d/a.c": LIC}, "core/base/d/a.c: no tests"),
    ("a file of a folder with a header of its own", "units",
     {"core/base/a/a.h": LIC, "core/base/a/x.c": LIC, "core/base/a/x.h": LIC}, "core/base/a/x.c: no tests"),
    ("a file split off a module without header", "units", {"core/base/zz_b.c": LIC}, "core/base/zz_b.c: no tests"),
    ("covers outside the first comment", "units",
     {"core/base/b.c": LIC, "tests/unit/base/a.c": LIC + "int x; /* covers: b */\n"}, "core/base/b.c: no tests"),
    ("covers another folder's source of that name", "units",
     {"core/base/d/it.c": LIC, "tests/unit/base/a.c": LIC + "/* covers: it */\n"}, "core/base/d/it.c: no tests"),
    ("covers what is not there", "units", {"tests/unit/base/a.c": LIC + "/* covers: gone */\n"}, "covers gone, which is not a source"),
    ("test that is not listed", "units", {"tests/unit/base/z.c": LIC}, "'base/z' is not in unit_tests"),
    ("test listed in a comment only", "units",
     {"tests/unit/base/z.c": LIC, "tests/unit/meson.build": GOOD["tests/unit/meson.build"] + "# unit_tests = {'base/z'}\n"},
     "'base/z' is not in unit_tests"),
    ("fuzz target that is not listed", "units", {"tests/fuzz/fuzz_z.c": LIC}, "'z' is not in tests/fuzz/targets"),
    ("source that nothing compiles", "units", {"core/base/b.c": LIC}, "core/base/b.c: is in no meson.build"),
    ("a program that no package ships", "programs", {"tests/a.py": PY_LIC + 'import subprocess\nsubprocess.run(["nix-env", "-q"])\n'},
     "tests/a.py: starts nix-env, which no package ships"),
    ("one started through a function", "programs", {
        "tests/lib.py": PY_LIC + "import os\ndef start(*words):\n    argv = [str(w) for w in words]\n    os.execvp(argv[0], argv)\n",
        "tests/a.py": PY_LIC + 'import lib\nhow = ["unshare", "-m", "sh", "-c", "cat x | nix-env"]\nlib.start(*how, "x")\n'},
     "tests/a.py: starts nix-env"),
    ("one in a script", "programs", {"tests/x.sh": "#!/bin/sh\n" + PY_LIC + "if true; then x=$(nix-env -q); fi\n"}, "tests/x.sh: starts nix-env"),
    ("a family README keeps quiet about", "coverage", {"core/format/more.c": '\t.name = "more",\n'},
     "does not say what proves the family more"),
    ("a golden checkpoint README keeps quiet about", "coverage", {"tests/golden/z/manifest.json": "{}"},
     "core/format/README.md: does not name tests/golden/z"),
    ("a claim that nothing proves", "coverage",
     {"core/format/README.md": GOOD["core/format/README.md"] + "| b | much | `fam` |\n"}, 'core/format/README.md:6: nothing proves "b"'),
    ("a proof that is not there", "coverage",
     {"core/format/README.md": GOOD["core/format/README.md"] + "| b | much | `base/a`, `gone` |\n"}, "core/format/README.md:6: `gone` is not a family"),
    ("badly formatted", "format", {"core/base/b.c": LIC + "int  x ;\n"}, "core/base/b.c: clang-format would change it at line 2"),
    ("header that leans on others", "headers", inc("size_t dcp_b(void);"), "core/base/a.h: does not compile alone"),
    ("header without a guard", "headers", {"core/base/a.h": LIC + "struct dcp_a {\n\tint x;\n};\n"}, "does not compile alone"),
)

# (what is wrong, C source, what the report must say)
SYMBOLS = (
    ("export without prefix", "int helper(void);\nint helper(void) { return 1; }", "external name helper does not start with dcp_"),
    ("variable without prefix", "extern int counter;\nint counter = 3;", "external name counter"),
    ("core prints", '#include <stdio.h>\nint dcp_x(void);\nint dcp_x(void) { return puts("x"); }', "core may not use puts()"),
    ("core reads the environment", "#include <stdlib.h>\nchar *dcp_x(void);\nchar *dcp_x(void) { return getenv(\"X\"); }",
     "core may not use getenv()"),
    ("core exits", "#include <stdlib.h>\nvoid dcp_x(void);\nvoid dcp_x(void) { exit(1); }", "core may not use exit()"),
    (None, "int dcp_x(void);\nint dcp_x(void) { return 1; }", "symbols: ok"),
)

# (what is wrong, C sources, what the report must say)
CIRCLES = (
    ("two files that call each other", ("void dcp_b(void); void dcp_a(void) { dcp_b(); }", "void dcp_a(void); void dcp_b(void) { dcp_a(); }"),
     "a.c calls dcp_b() of b.c\nb.c calls dcp_a() of a.c\n"),
    ("a table that is above what it names", ("extern void (*const dcp_c)(void); void dcp_a(void) { dcp_c(); }",
     "void dcp_a(void); extern void (*const dcp_c)(void); void (*const dcp_c)(void) = dcp_a;"), "a.c calls dcp_c() of b.c"),
    (None, ("void dcp_b(void); void dcp_a(void) { dcp_b(); }", "void dcp_b(void) { }"), "circles: ok"),
)


# What meson's log says of the tests a (suite unit), m (mount) and g (gpu); the closing line, plain and for CI.
ABI = (  # symbols that the list has and the library lacks, and the reverse
    ("the list fits", " dcpx_a@Base 0.1.0\n dcpx_b@Base 0.1.0\n", 0, "abi: ok, 2"),
    ("a symbol vanished", " dcpx_a@Base 0.1.0\n dcpx_b@Base 0.1.0\n dcpx_c@Base 0.1.0\n", 1, "no longer exports dcpx_c"),
    ("a symbol is not listed", " dcpx_a@Base 0.1.0\n", 1, "exports dcpx_b, which is not listed"),
)

SUMMARIES = (
    ("all ran", "a=OK m=OK g=EXPECTEDFAIL", "3 passed, 0 failed, 0 skipped", "3 passed, 0 failed, 0 skipped"),
    ("each way to fail", "a=FAIL m=TIMEOUT g=UNEXPECTEDPASS", "0 passed, 3 failed, 0 skipped", "0 passed, 3 failed, 0 skipped"),
    ("killed in the middle", "a=OK m=INTERRUPT", "1 passed, 2 failed, 0 skipped", "1 passed, 2 failed, 0 skipped"),
    ("a skip that CI allows", "a=OK m=OK g=SKIP", "2 passed, 0 failed, 1 skipped", "2 passed, 0 failed, 1 skipped"),
    ("a skip that CI does not", "a=SKIP m=OK g=OK", "2 passed, 0 failed, 1 skipped", "2 passed, 1 failed, 0 skipped"),
    ("all skipped is not green", "a=SKIP m=SKIP g=SKIP", "0 passed, 0 failed, 3 skipped", None),
    ("no log at all", None, "0 passed, 1 failed, 0 skipped", "0 passed, 1 failed, 0 skipped"),
)


def plant(root, files):
    for name, body in files.items():
        path = root / name
        if body is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, newline="")


def run(guard, *args):
    got = subprocess.run([sys.executable, "-B", str(HERE / f"{guard}.py"), *map(str, args)],
                         capture_output=True, text=True)
    return got.returncode, got.stdout + got.stderr


def guard_on(guard, files, cc):
    with tempfile.TemporaryDirectory() as tmp:
        root, build = pathlib.Path(tmp) / "tree", pathlib.Path(tmp) / "made"
        plant(root, files)
        build.mkdir()
        command = {"directory": str(build), "command": f"{cc} -std=gnu11 -Wall -c x.c", "file": "x.c"}
        (build / "compile_commands.json").write_text(json.dumps([command]))
        return run(guard, root, *([build] if guard == "headers" else []))


def library_of(tmp, sources, cc, ar, names="abc"):
    """Sources as a.c, b.c, ... compiled into a library."""
    for name, source in zip(names, sources):
        (pathlib.Path(tmp) / f"{name}.c").write_text(source + "\n")
        subprocess.run([cc, "-c", f"{name}.c", "-o", f"{name}.c.o"], check=True, cwd=tmp)
    lib = pathlib.Path(tmp) / "libx.a"
    subprocess.run([ar, "rcs", lib, *pathlib.Path(tmp).glob("*.o")], check=True, capture_output=True)
    return lib


def symbols_on(source, cc, nm, ar, room="core", name="a"):
    with tempfile.TemporaryDirectory() as tmp:
        return run("symbols", nm, room, library_of(tmp, [source], cc, ar, [name]))


def abi_on(lines, cc, nm):
    with tempfile.TemporaryDirectory() as tmp:
        plant(pathlib.Path(tmp), {"x.c": "int dcpx_a, dcpx_b;\n", "debian/libdcpx0.symbols": "libdcpx.so.0 libdcpx0 #MINVER#\n" + lines})
        subprocess.run([cc, "-shared", "-fPIC", "x.c", "-o", "libdcpx.so.0.1.0"], check=True, cwd=tmp)
        return run("abi", nm, tmp, pathlib.Path(tmp) / "libdcpx.so.0.1.0")


def circles_on(sources, cc, nm, ar):
    with tempfile.TemporaryDirectory() as tmp:
        return run("circles", nm, library_of(tmp, sources, cc, ar))


def summary_of(log, *flags):
    with tempfile.TemporaryDirectory() as tmp:
        known = [{"name": n, "suite": [f"dcpfs:{s}"], "cmd": [n]} for n, s in (("a", "unit"), ("m", "mount"), ("g", "gpu"))]
        files = {"b/meson-info/intro-tests.json": json.dumps(known)}
        if log:
            lines = [{"name": f"dcpfs:x / {w[0]}", "command": [w[0]], "result": w[2:], "stderr": f"why {w[0]}\n"} for w in log.split()]
            files["b/meson-logs/testlog.json"] = "".join(json.dumps(x) + "\n" for x in lines)
        plant(pathlib.Path(tmp), files)
        return run("../summary", *flags, tmp, "b")


def main(cc, nm="nm", ar="ar"):
    failed, ran, without = 0, 0, set()

    def judge(what, guard, want_rc, says, rc, out):
        nonlocal failed, ran
        if rc == 77:
            without.add(out.strip())
            return
        ran += 1
        if rc != want_rc or says not in out:
            failed += 1
            print(f"{guard}: {what}: wanted exit {want_rc} and \"{says}\", got exit {rc} and\n{out}")

    for guard in ("layers", "files", "words", "units", "coverage", "format", "programs"):
        judge("the good tree", guard, 0, f"{guard}: ok", *guard_on(guard, GOOD, cc))
    judge("the good tree", "headers", 0, "headers: ok", *guard_on("headers", GOOD, cc))
    for what, guard, change, says in CASES:
        judge(what, guard, 1, says, *guard_on(guard, {**GOOD, **change}, cc))
    for what, source, says in SYMBOLS:
        judge(what or "a good library", "symbols", 1 if what else 0, says, *symbols_on(source, cc, nm, ar))
    for what, lines, rc, says in ABI:
        judge(what, "abi", rc, says, *abi_on(lines, cc, nm))
    reads = '#include <stdlib.h>\nchar *load_x(void);\nchar *load_x(void) { return getenv("X"); }'
    judge("load reads the environment", "symbols", 1, "a.c.o: load may not use getenv()", *symbols_on(reads, cc, nm, ar, "load"))
    judge("the file of load that may", "symbols", 0, "symbols: ok", *symbols_on(reads, cc, nm, ar, "load", "comm_job"))
    for what, sources, says in CIRCLES:
        judge(what or "no circle", "circles", 1 if what else 0, says, *circles_on(sources, cc, nm, ar))
    part = {**GOOD, "core/base/a_part.c": LIC, "core/meson.build": "x = files('base/a.c', 'base/a_part.c', 'format/fam.c', 'store/index/index.c')\n"}
    judge("a part of a tested module", "units", 0, "units: ok", *guard_on("units", part, cc))
    for what, log, plain, strict in SUMMARIES:
        for says, flags in ((plain, []), (strict, ["--ci"])):
            if says:
                good = ", 0 failed" in says and not says.startswith("0 passed")
                judge(what, "summary", 0 if good else 1, "\n" + says + "\n", *summary_of(log, *flags))
    for why in sorted(without):
        print(f"not proved here: {why}")
    print(f"selftest: {ran} cases, {failed} failed")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
