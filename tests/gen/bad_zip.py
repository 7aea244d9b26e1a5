#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/bad/zip: a healthy archive damaged in one place each, and the list EXPECT.

Run from the project root.  Inputs found by fuzzing stand in EXPECT below FOUND and are kept.
"""
import struct
import zlib
from pathlib import Path

OUT = Path("tests/bad/zip")


class Zip:
    """A stored archive; attributes say where each record came to lie."""

    def __init__(self, members, zip64=False):
        self.b = bytearray()
        self.local, self.entry = [], []
        for name, data in members:
            self.local.append(len(self.b))
            self.b += struct.pack("<IHHHIIIIHH", 0x04034B50, 20, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(name), 0) + name + data
        self.dir = len(self.b)
        for (name, data), off in zip(members, self.local):
            self.entry.append(len(self.b))
            n, o, extra = len(data), off, b""
            if zip64:
                extra = struct.pack("<HHQQQ", 1, 24, n, n, off)
                n = o = 0xFFFFFFFF
            self.b += struct.pack("<IHHHHIIIIHHHHHII", 0x02014B50, 20, 20, 0, 0, 0, zlib.crc32(data), n, n, len(name), len(extra), 0, 0, 0, 0, o) + name + extra
        size = len(self.b) - self.dir
        self.eocd64 = len(self.b)
        if zip64:
            self.b += struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, len(members), len(members), size, self.dir)
            self.b += struct.pack("<IIQI", 0x07064B50, 0, self.eocd64, 1)
        self.eocd = len(self.b)
        self.b += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(members), len(members), size, self.dir, 0)

    def poke(self, at, fmt, value):
        struct.pack_into("<" + fmt, self.b, at, value)
        return self


MEMBERS = [(b"a/data.pkl", b"0123456789"), (b"a/data/0", b"abcdef")]


def plain():
    return Zip(MEMBERS)


def big():
    return Zip(MEMBERS, zip64=True)


def cases():
    yield "empty-file", "EBADMSG", "cut short, or not a zip", b""
    yield "text-file", "EBADMSG", "cut short, or not a zip", b"not an archive at all\n" * 9
    z = plain()
    yield "cut-in-end-record", "EBADMSG", "cut short, or not a zip", bytes(z.b[:-1])
    yield "byte-behind-the-end", "EBADMSG", "cut short, or not a zip", bytes(z.b) + b"x"
    yield "central-directory-past-end", "EBADMSG", "does not end before its end record", z.poke(z.eocd + 16, "I", len(z.b)).b
    z = plain()
    yield "central-directory-too-long", "EBADMSG", "does not end before its end record", z.poke(z.eocd + 12, "I", 0x7FFFFFFF).b
    z = plain()
    yield "central-directory-one-byte-short", "EBADMSG", "directory entry of 54 bytes, but 53 are left", z.poke(z.eocd + 12, "I", z.eocd - z.dir - 1).b
    z = plain()
    z.poke(z.eocd + 8, "H", 1)
    yield "count-one-short", "EBADMSG", "54 bytes left in the central directory after its 1 members", z.poke(z.eocd + 10, "H", 1).b
    z = plain()
    z.poke(z.eocd + 8, "H", 9)
    yield "count-too-large", "EBADMSG", "claims 9 members", z.poke(z.eocd + 10, "H", 9).b
    z = plain()
    yield "count-differs-by-disk", "ENOTSUP", "multi-disk", z.poke(z.eocd + 8, "H", 1).b
    z = plain()
    yield "disk-number", "ENOTSUP", "multi-disk", z.poke(z.eocd + 4, "H", 1).b
    z = plain()
    yield "member-on-another-disk", "ENOTSUP", "multi-disk", z.poke(z.entry[1] + 34, "H", 3).b
    z = plain()
    yield "entry-signature", "EBADMSG", "claims 2 members, found 1", z.poke(z.entry[1], "I", 0).b
    z = plain()
    yield "entry-name-past-end", "EBADMSG", "bytes, but", z.poke(z.entry[1] + 28, "H", 0xFFFF).b
    z = plain()
    z.poke(z.entry[0] + 28, "H", 0)
    yield "entry-without-name", "EBADMSG", "without a name", z.poke(z.entry[0] + 32, "H", 10).b
    z = plain()
    yield "entry-name-with-nul", "EBADMSG", "NUL in its name", z.poke(z.entry[0] + 46 + 3, "B", 0).b
    z = plain()
    yield "header-inside-directory", "EBADMSG", "does not end before the central directory", z.poke(z.entry[1] + 42, "I", z.dir).b
    z = plain()
    yield "header-past-end", "EBADMSG", "does not end before the central directory", z.poke(z.entry[1] + 42, "I", 0xFFFFFFFE).b
    z = plain()
    z.poke(z.entry[1] + 20, "I", 5000)
    yield "data-reaches-directory", "EBADMSG", "does not end before the central directory", z.poke(z.entry[1] + 24, "I", 5000).b
    z = plain()
    yield "stored-with-two-sizes", "EBADMSG", "6 bytes become 7", z.poke(z.entry[1] + 24, "I", 7).b
    z = plain()
    yield "encrypted", "ENOTSUP", "not stored", z.poke(z.entry[1] + 8, "H", 1).b
    z = plain()
    yield "deflated", "ENOTSUP", "not stored", z.poke(z.entry[1] + 10, "H", 8).b
    z = plain()
    yield "local-signature", "EBADMSG", "no local header where", z.poke(z.local[1], "I", 0).b
    z = plain()
    yield "local-name-differs", "EBADMSG", "names something else", z.poke(z.local[1] + 30, "B", ord("b")).b
    z = plain()
    yield "local-name-length-differs", "EBADMSG", "names something else", z.poke(z.local[1] + 26, "H", 7).b
    z = plain()
    yield "local-extra-past-end", "EBADMSG", "does not end inside the archive", z.poke(z.local[1] + 28, "H", 0xFFFF).b
    z = plain()
    yield "local-compressed", "EBADMSG", "compressed or encrypted in its header", z.poke(z.local[1] + 8, "H", 8).b
    z = plain()
    yield "local-encrypted", "EBADMSG", "compressed or encrypted in its header", z.poke(z.local[1] + 6, "H", 1).b
    z = plain()
    yield "local-size-differs", "EBADMSG", "6 bytes in the directory, 5 in its header", z.poke(z.local[1] + 22, "I", 5).b
    z = plain()
    yield "saturated-without-zip64-field", "EBADMSG", "no field for it", z.poke(z.entry[1] + 42, "I", 0xFFFFFFFF).b
    z = big()
    yield "zip64-field-too-short", "EBADMSG", "no field for it", z.poke(z.entry[1] + 46 + 8 + 2, "H", 16).b
    z = big()
    yield "zip64-field-past-extra", "EBADMSG", "no field for it", z.poke(z.entry[1] + 46 + 8 + 2, "H", 4000).b
    z = big()
    yield "zip64-size-wraps", "EBADMSG", "does not end before the central directory", z.poke(z.entry[1] + 46 + 8 + 4, "Q", 2**64 - 8).poke(z.entry[1] + 46 + 8 + 12, "Q", 2**64 - 8).b
    z = big()
    yield "zip64-offset-wraps", "EBADMSG", "does not end before the central directory", z.poke(z.entry[1] + 46 + 8 + 20, "Q", 2**64 - 8).b
    z = big()
    yield "zip64-end-past-end", "EBADMSG", "after its locator", z.poke(z.eocd - 12, "Q", 2**63).b
    z = big()
    yield "zip64-end-signature", "EBADMSG", "no zip64 end record where", z.poke(z.eocd64, "I", 0).b
    z = big()
    yield "zip64-directory-wraps", "EBADMSG", "does not end before its end record", z.poke(z.eocd64 + 48, "Q", 2**64 - 10).poke(z.eocd + 16, "I", 0xFFFFFFFF).b
    z = big()
    yield "zip64-disks", "ENOTSUP", "multi-disk", z.poke(z.eocd - 4, "I", 2).b
    z = big()
    yield "zip64-end-on-another-disk", "ENOTSUP", "multi-disk", z.poke(z.eocd64 + 16, "I", 1).b
    z = big()
    z.poke(z.eocd64 + 24, "Q", 2**40)
    z.poke(z.eocd + 8, "I", 0xFFFFFFFF)
    yield "zip64-count-huge", "EBADMSG", "claims 1099511627776 members", z.poke(z.eocd64 + 32, "Q", 2**40).b
    z = big()
    yield "two-end-records-disagree", "EBADMSG", "describe different directories", z.poke(z.eocd + 12, "I", 54).b


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    listed = OUT / "EXPECT"
    old = listed.read_text().splitlines() if listed.exists() else []
    lines = []
    for name, code, says, data in cases():
        (OUT / name).write_bytes(bytes(data))
        lines.append(f"{name} {code} {says}")
    made = {line.split()[0] for line in lines}
    lines += [line for line in old if line.split()[0].startswith("found-") and line.split()[0] not in made]
    listed.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
