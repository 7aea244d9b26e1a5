#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when an #include points the wrong way, or a third-party header leaves its owner.

usage: layers.py ROOT
"""
import re
import sys

import tree

MAY_SEE = {"core": {"core"}, "fs": {"fs", "core"}, "tools": {"tools", "fs", "core"}}
FLOORS = ("base", "model", "origin", "parse", "remote", "write", "rules", "format", "store", "hf", "checkpoint")  # a file sees its own floor and those before

# Folders of tools/ that are libraries: they include no program and nothing of the mount.
LIBRARIES = {"tools/load/": ("core/", "tools/load/"), "tools/save/": ("core/", "tools/save/", "tools/load/")}

# Families in core/format/ include these of each other's headers, which are written for all of them, and no others.
SHARED = re.compile(r"core/format/(\w+\.h|gather/.*|torch/torch\.h|weights/name\.h|nest/relay\.h|parts/parts\.h)")

# (header, files that may include it)
OWNERS = (
    (r"fuse.*", r"fs/(ops|session|reply)[a-z_]*\.[ch]"),
    (r"sqlite3.*", r"core/store/index[a-z_/]*\.[ch]"),
    (r"zlib\.h", r"core/base/hash\.c"),
    (r"pcre2\.h", r"core/parse/regex\.c"),
    (r"jansson.*", r"core/parse/json\.c"),
    (r"archive.*", r"core/origin/archive/inflate\.c"),
    (r"xxh.*", r"core/base/hash\.c"),
    (r"nettle/.*", r"core/remote/(bucket|sign)\.c|core/store/view/measure\.c|core/base/hash\.c|tools/load/comm/meet\.c"),
    (r"curl/.*", r"core/remote/curl\.c"),
    (r"curses\.h", r"tools/browse/screen_ncurses\.c"),
    (r"expat\.h", r"core/remote/xml\.c"),
    (r"liburing.*", r"core/store/(io/)?ring_uring\.c"),
    (r"linux/openat2\.h", r"core/origin/dir/open\.c"),
    (r"sys/inotify\.h", r"core/origin/dir/notify\.c"),
    (r"mpi.*", r"tools/load/comm/mpi\.c"),
    (r"nccl.*", r"tools/load/[a-z_/]*nccl[a-z_]*\.[ch]"),
    (r"cu(da|file).*", r"tools/load/[a-z_/]*(cuda|gds|cufile)[a-z_]*\.[ch]"),
)

# Calls that only the file system's row of core/origin may make, as every other kind of source lacks what they ask:
# descriptors, struct stat, directories of the kernel. The rest of the list is not about sources, or says why.
PAGES = r"\bmincore\(|\bposix_fadvise\(|\bcopy_file_range\(|[|=] O_DIRECT\b|\bO_DIRECT\b(?=\s*[|),;])|\binotify_"
SYSTEM = (PAGES + r"|\b(?:l|f)?stat(?:at|x|fs)?\(|\bfstatfs\(|\bopenat2?\(|\bdcp_open_beneath\(|\bfaccessat\(|\bopendir\(|\bscandirat\(|"
          r"\breadlink(?:at)?\(|/proc/self/fd|\bstruct stat st")
COMMENT = re.compile(r"/\*.*|^\s*\*.*|^[^;]*\*/")
RULES = (("tools/load/", PAGES), ("tools/", None), ("", SYSTEM))  # programs write files; libdcpload reads sources
MAY_CALL = (
    r"core/origin/dir/.*",                    # the row
    r"core/store/(cache|index)/.*",           # files of dcpfs itself, which lie in the user's cache
    r"core/(base/trim|remote/disk)\.c",       # the same: its old files, and blocks of objects
    r"fs/(ops|tree/(attr|rows))\.c",          # attributes of the mount's own files, as FUSE wants them
    r"fs/(session|listen)\.c",                # the mount point, and the socket of metrics, which nothing else made
    r"fs/text/text\.c",                       # how many descriptors this process has
)

# What libc and the kernel give. Anything else in angle brackets needs an owner above.
LIBC = set("""
aio alloca argp argz assert byteswap complex cpio ctype dirent dlfcn elf endian envz err errno error
execinfo fcntl features fenv float fnmatch ftw getopt glob grp iconv inttypes iso646 langinfo libgen
libintl limits link locale malloc math mntent netdb poll pthread pwd regex sched search semaphore
setjmp signal spawn stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string
strings sysexits syslog termios tgmath threads time ucontext uchar unistd utime wchar wctype wordexp
cpuid emmintrin immintrin nmmintrin pmmintrin smmintrin tmmintrin wmmintrin xmmintrin arm_neon
""".split())
LIBC_DIRS = ("sys/", "linux/", "arpa/", "net/", "netinet/")
INCLUDE = re.compile(r'\s*#\s*include(?:_next)?\s*([<"])([^>"]+)[>"]')


def owner_of(target):
    for header, owner in OWNERS:
        if re.fullmatch(header, target):
            return owner
    return None


def quoted(rel, target):
    """What is wrong with this quoted include, or None."""
    room, to = rel.split("/")[0], target.split("/")
    if to[0] not in MAY_SEE or len(to) < 2:
        return f'"{target}" is not written from the project root'
    if to[0] not in MAY_SEE[room]:
        return f'{room}/ may not include "{target}"'
    if ".." in to or "." in to:
        return f'"{target}" climbs'
    for library, sees in LIBRARIES.items():
        if rel.startswith(library) and not target.startswith(sees):
            return f'{library} is a library and may not include "{target}"'
    if room == "core" and FLOORS.index(rel.split("/")[1]) < FLOORS.index(to[1]):
        return f'core/{rel.split("/")[1]} is below core/{to[1]} and may not include "{target}"'
    if rel.startswith("core/format/") and target.startswith("core/format/") and not SHARED.fullmatch(target) \
            and (rel.count("/") == 2 or not target.startswith("/".join(rel.split("/")[:3]) + "/")):
        return f'{rel.split("/")[2].removesuffix(".c")} is a family and may not include "{target}" of another'
    if target.endswith("_int.h") and not rel.startswith(target.rsplit("/", 1)[0] + "/"):
        return f'"{target}" is private to {target.rsplit("/", 1)[0]}/'
    if not target.endswith(".h"):
        return f'"{target}" is not a header'
    return None


def angled(rel, target):
    """What is wrong with this include in angle brackets, or None."""
    owner = owner_of(target)
    if owner:
        return None if re.fullmatch(owner, rel) else f"<{target}> belongs to {owner}"
    if target.startswith(LIBC_DIRS) or target.removesuffix(".h") in LIBC:
        return None
    return f"<{target}> has no owner: add one to OWNERS in tests/lint/layers.py"


def private(root):
    """Folders with more than one private header: there is a second noun inside."""
    of = {}
    for rel in tree.select(root, "_int.h", under=tree.ROOMS):
        of.setdefault(rel.rsplit("/", 1)[0], []).append(rel.rsplit("/", 1)[1])
    return [f"{folder}: {' and '.join(names)}; a folder has one private header at most" for folder, names in of.items() if names[1:]]


def check(root):
    bad, seen = private(root), 0
    for rel in tree.select(root, ".c", ".h", ".cu", under=tree.ROOMS):
        parts = rel.split("/")
        seen += 1
        if parts[0] == "core" and (len(parts) < 3 or parts[1] not in FLOORS):
            bad.append(f"{rel}: stands on no floor; core has {' '.join(FLOORS)}")
            continue
        free = not rel.endswith(".c") or any(re.fullmatch(f, rel) for f in MAY_CALL)
        rule = None if free else next(rule for under, rule in RULES if rel.startswith(under))
        for no, line in enumerate(tree.text(root, rel).splitlines(), 1):
            call = re.search(rule, COMMENT.sub("", line)) if rule else None
            if call:
                bad.append(f"{rel}:{no}: {call.group()} is known to core/origin/dir/ alone: ask the site or the blob")
            m = INCLUDE.match(line)
            if not m:
                continue
            mark, target = m.groups()
            wrong = quoted(rel, target) if mark == '"' and not owner_of(target) else angled(rel, target)
            if wrong:
                bad.append(f"{rel}:{no}: {wrong}")
    return bad, seen


if __name__ == "__main__":
    tree.finish("layers", *check(sys.argv[1]))
