#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is installed, as another program finds it: by pkg-config, from C and from C++.

usage: install.py MESON BUILD CC...
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

MESON, BUILD, *CC = sys.argv[1:]
LOADS = """
#include <stdio.h>
#include <dcpload.h>
int main(int argc, char **argv)
{
	struct dcpload_error err;
	struct dcpload *ck;
	if (argc != 2 || dcpload_abi() != DCPLOAD_ABI || dcpload_open(NULL, argv[1], NULL, &ck, &err) < 0)
		return 1;
	puts(dcpload_version(ck));
	dcpload_close(ck);
	return 0;
}
"""
SAVES = """
#include <stdio.h>
#include <dcpsave.h>
int main(void)
{
	return dcpsave_abi() != DCPSAVE_ABI || puts("same") < 0;
}
"""


def run(*argv, **env):
    return subprocess.run(argv, env={**os.environ, **env}, check=True, stdout=subprocess.PIPE, text=True).stdout


def main():
    if not shutil.which("pkg-config"):
        print("there is no pkg-config", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory() as top:
        root = pathlib.Path(top, "root")
        run(MESON, "install", "-C", BUILD, "--no-rebuild", "--destdir", str(root))
        for library, text, argv, want in ("dcpload", LOADS, ["tests/golden/dcp-fsdp2/ckpt"], "step-20\n"), ("dcpsave", SAVES, [], "same\n"):
            pc, = root.rglob(f"{library}.pc")
            flags = run("pkg-config", "--cflags", "--libs", library, PKG_CONFIG_PATH=str(pc.parent), PKG_CONFIG_SYSROOT_DIR=str(root)).split()
            links = {p.name: p.is_symlink() for p in pc.parent.parent.glob(f"lib{library}.so*")}
            assert links.get(f"lib{library}.so") and links.get(f"lib{library}.so.0"), links
            for suffix in ("c", "cc"):
                source, program = pathlib.Path(top, f"{library}.{suffix}"), os.path.join(top, "program")
                source.write_text(text, encoding="ascii")
                if suffix == "cc" and subprocess.run([*CC, "-E", source, *flags], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
                    print("no C++ here: left out")
                    continue
                run(*CC, "-Wall", "-Werror", str(source), "-o", program, *flags)
                assert f"[lib{library}.so.0]" in run("readelf", "-d", program), "it does not ask for the library by its soname"
                said = run(program, *argv, LD_LIBRARY_PATH=str(pc.parent.parent), DCPFS_CACHE=top)
                assert said == want, (library, suffix, said)
        # The program finds its module where it was installed, wherever that is.
        for module in root.rglob("libdcpload-mpi.so"):
            program, = root.rglob("bin/dcpfs")
            found = {f["name"]: f for f in json.loads(run(str(program), "doctor", "--json", DCPFS_CACHE=top, LD_LIBRARY_PATH=""))["checks"]}
            assert found["mpi"]["state"] == "ok", (module, found["mpi"])
    return 0


sys.exit(main())
