# SPDX-License-Identifier: Apache-2.0
"""Any window of any file, by every way there is to read one, gives the bytes of the whole."""
import ctypes
import errno
import mmap
import os
import socket
import threading

import arrays
import lib
from lib import case, check, equal, fails

MIB = 1 << 20
_state = {}


def big():
    """Tensors of some MiB, cut along either dimension: long runs, short runs, widened ones."""
    rng = lib.rng("big")
    shapes = {"rows": ("F32", [1027, 1031], 0), "columns": ("F32", [611, 997], 1), "narrow": ("U8", [9001, 33], 1),
              "half": ("BF16", [777, 1001], 1), "bytes": ("F8_E4M3", [300001], 0), "one": ("I64", [1, 1], 0)}
    return {k: (dtype, shape, dim, rng.randbytes(arrays.volume(shape) * arrays.ITEM[dtype]))
            for k, (dtype, shape, dim) in shapes.items()}


def files():
    """{path: all its bytes}, known without dcpfs for the big ones; one mount for all tests."""
    if _state:
        return _state["files"]
    source, tensors = lib.fresh("source"), big()
    arrays.write_sharded(source / "step-1", tensors)
    lib.copy(lib.GOLDEN / "dcp-fsdp2" / "ckpt" / "step-10", source / "step-2")
    lib.copy(lib.GOLDEN / "dcp-plain" / "ckpt" / "all", source / "step-3")
    lib.copy(lib.GOLDEN / "dcp-async-dedup" / "ckpt" / "6-zstd", source / "step-4")
    m = _state["mount"] = lib.mount(source, stays=True).settled()
    known = {}
    for key, (dtype, _, _, raw) in tensors.items():
        known[m.at / "step-1" / "raw" / f"{key}.bin"] = raw
        npy = m.at / "step-1" / "npy" / f"{key}.npy"
        known[npy] = lib.read(npy)
        check(arrays.same_numbers(dtype, arrays.parse_npy(known[npy])[2], arrays.widened(dtype, raw)),
              f"numbers of {npy}")
        equal(lib.sha(lib.read(m.at / "step-1" / "raw" / f"{key}.bin")), lib.sha(raw), f"all of {key}")
    for version in ("step-2", "step-3", "step-4"):
        for t in m.index(version)["tensors"].values():
            for name in filter(None, t["files"].values()):
                known[m.at / version / name] = lib.read(m.at / version / name)
    _state["files"] = known
    return known


def large(count=None):
    """The files worth a window."""
    return [p for p, data in files().items() if len(data) > 100000][:count]


def window(rng, size):
    """A place and a length, with a liking for ends, page borders and odd numbers."""
    at = rng.choice([rng.randrange(size + 1), rng.randrange(size + 1), rng.randrange(size // 4096 + 1) * 4096,
                     max(0, size - rng.randrange(200)), 0])
    n = rng.choice([1, 3, 511, 4095, 4097, 65537, rng.randrange(1, 2000), rng.randrange(1, 300000), MIB + 1])
    return at, n


def compare(data, at, n, got, how):
    want = data[at:at + n]
    if got == want:
        return True
    first = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    return lib.fail(f"{how} {n} at {at} of {len(data)}: {len(got)} bytes, first difference at {first}")


def any_window_is_read():
    """Cached or not, any window."""
    rng = lib.rng("pread")
    for path, data in files().items():
        case(str(path))
        fd = os.open(path, os.O_RDONLY)
        for i in range(60 if len(data) > 100000 else 6):
            at, n = window(rng, len(data))
            if i % 3 == 0:
                lib.forget(fd)
            if not compare(data, at, n, os.pread(fd, n, at), "pread"):
                break
        os.close(fd)


def reads_end_at_the_end():
    """Behind the end there is nothing, and no error."""
    for path in [*large(2), min(files(), key=lambda p: len(files()[p]))]:
        case(str(path))
        data, fd = files()[path], os.open(path, os.O_RDONLY)
        for at in (len(data), len(data) + 1, len(data) + 4096, 1 << 40, (1 << 62) + 1):
            equal(os.pread(fd, 4097, at), b"", f"pread at {at}")
        if data:
            equal(os.pread(fd, 4097, len(data) - 1), data[-1:], "the last byte")
            equal(os.lseek(fd, 0, os.SEEK_DATA), 0, "SEEK_DATA")
            equal(os.lseek(fd, 0, os.SEEK_HOLE), len(data), "SEEK_HOLE: no holes")
        equal(os.lseek(fd, 0, os.SEEK_END), len(data), "SEEK_END")
        fails("EINVAL", os.pread, fd, 1, -1)
        os.close(fd)


def direct_reads_agree():
    """O_DIRECT at offsets, lengths and addresses that no disk would take."""
    rng = lib.rng("direct")
    memory = mmap.mmap(-1, 4 * MIB)
    for path in large(6):
        case(str(path))
        data, fd = files()[path], os.open(path, os.O_RDONLY | os.O_DIRECT)
        for at in (0, 1, 511, 4096, 4097, len(data) // 2 + 7, len(data) - 3):
            for n in (1, 513, 4096, 70001, MIB + 4097):
                for address in (0, 1, 4095):
                    view = memoryview(memory)[address:address + n]
                    got = os.preadv(fd, [view], at)
                    compare(data, at, n, bytes(view[:got]), f"O_DIRECT into +{address}:")
        for _ in range(20):
            at, n = window(rng, len(data))
            view = memoryview(memory)[7:7 + n]
            compare(data, at, n, bytes(view[:os.preadv(fd, [view], at)]), "O_DIRECT")
        os.close(fd)


def vectors_are_one_read():
    """preadv into several odd buffers is one read."""
    rng = lib.rng("vectors")
    for path in large():
        case(str(path))
        data, fd = files()[path], os.open(path, os.O_RDONLY)
        for _ in range(20):
            sizes = [rng.choice([0, 1, 7, 4096, rng.randrange(30000)]) for _ in range(rng.randrange(1, 12))]
            buffers, at = [bytearray(n) for n in sizes], rng.randrange(len(data))
            n = os.preadv(fd, buffers, at)
            equal(n, min(sum(sizes), len(data) - at), "bytes that preadv read")
            compare(data, at, n, b"".join(buffers)[:n], "preadv")
        os.close(fd)


def mapped_bytes_agree():
    """Shared and private maps, touched in any order; a private one may be written to."""
    rng = lib.rng("mapped")
    for path in large():
        case(str(path))
        data, fd = files()[path], os.open(path, os.O_RDONLY)
        lib.forget(fd)
        shared = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        private = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        for i in range(40):
            at, n = window(rng, len(data))
            compare(data, at, n, (shared if i % 2 else private)[at:at + n], "map")
        for _ in range(10):
            private[rng.randrange(len(data))] = 0xa5
        lib.forget(fd)
        check(shared[:] == data, "the shared map after writing to the private one")
        check(os.pread(fd, len(data), 0) == data[:len(data)], "the file after writing to the private map")
        fails("EACCES EPERM", mmap.mmap, fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        shared.close()
        private.close()
        os.close(fd)


def sendfile_agrees():
    """sendfile into a socket."""
    rng = lib.rng("sendfile")
    for path in large(8):
        case(str(path))
        data, fd = files()[path], os.open(path, os.O_RDONLY)
        a, b = socket.socketpair()
        at = rng.randrange(len(data) // 2)
        n = rng.randrange(1, len(data) - at)
        parts = []

        def receive():
            while part := b.recv(65536):
                parts.append(part)

        reader = threading.Thread(target=receive)
        reader.start()
        done = 0
        while done < n:
            sent = os.sendfile(a.fileno(), fd, at + done, n - done)
            if not check(sent, "sendfile ended early"):
                break
            done += sent
        a.close()
        reader.join()
        b.close()
        compare(data, at, n, b"".join(parts), "sendfile")
        os.close(fd)


def copy_file_range_agrees():
    """copy_file_range and splice; across file systems some kernels refuse the first."""
    for path in large(4):
        case(str(path))
        data, fd = files()[path], os.open(path, os.O_RDONLY)
        out = os.open(lib.WORK / "copied", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        done = 0
        try:
            while n := os.copy_file_range(fd, out, len(data) - done, done, done):
                done += n
            compare(data, 0, len(data), lib.read(lib.WORK / "copied"), "copy_file_range")
        except OSError as e:
            check(e.errno in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP), f"copy_file_range: {e}")
        r, w = os.pipe()
        got, at = b"", 3
        while len(got) < 100000:
            n = os.splice(fd, w, 30011, offset_src=at)
            if not check(n, "splice ended early"):
                break
            got, at = got + os.read(r, n), at + n
        compare(data, 3, len(got), got, "splice")
        for x in (r, w, out, fd):
            os.close(x)


def _reader(number, paths, table, rounds):
    """One of many; returns how many windows were wrong."""
    rng, wrong = lib.rng("many", number), 0
    for _ in range(rounds):
        path = rng.choice(paths)
        data = table[path]
        at, n = window(rng, len(data))
        fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if rng.random() < 0.3 else 0))
        if rng.random() < 0.3:
            lib.forget(fd)
        wrong += os.pread(fd, n, at) != data[at:at + n]
        os.close(fd)
    return wrong


def many_processes_read():
    """Sixteen processes on random files at once."""
    table = files()
    paths, children = list(table), []
    for i in range(16):
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = min(_reader(i, paths, table, 120), 98)
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    equal(codes, [0] * 16, "wrong windows (99: a call failed) of each process")


def many_threads_read():
    """Sixteen threads on one descriptor of one file, and on files of their own."""
    table, wrong = files(), []
    path = large(2)[1]
    fd = os.open(path, os.O_RDONLY)

    def work(number):
        rng = lib.rng("threads", number)
        for _ in range(60):
            at, n = window(rng, len(table[path]))
            if os.pread(fd, n, at) != table[path][at:at + n]:
                wrong.append(at)
        wrong.extend([-1] * _reader(number + 100, list(table), table, 40))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    os.close(fd)
    equal(wrong, [], "windows that were wrong")


def other_modes_agree():
    """The same through --io=pread, with --no-open and one thread, and passed through by the kernel."""
    files()
    source = _state["mount"].argv[-2]
    for options in (["--io=pread"], ["--no-open", "--threads=1"], ["--passthrough=64"], ["--passthrough=1"]):
        if not lib.knows(options):
            continue
        with lib.mount(source, *options) as m:
            rng = lib.rng("modes")
            for path, data in files().items():
                here = m.at / path.relative_to(_state["mount"].at)
                case(f"{options} {here}")
                fd = os.open(here, os.O_RDONLY)
                for _ in range(20 if len(data) > 100000 else 2):
                    at, n = window(rng, len(data))
                    compare(data, at, n, os.pread(fd, n, at), "pread")
                os.close(fd)


def small_steps_read_every_byte():
    """A sequential reader with small steps sees every byte once; so does posix_fadvise's."""
    libc = ctypes.CDLL(None)
    for path in large(3):
        case(str(path))
        data, fd = files()[path], os.open(path, os.O_RDONLY)
        lib.forget(fd)
        libc.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        got = []
        while part := os.read(fd, 4099):
            got.append(part)
        compare(data, 0, len(data), b"".join(got), "read")
        os.close(fd)


def the_option_sets_readahead():
    """A MiB, or what --readahead says, is what the kernel uses once the mount answers, where we may say so."""
    files()
    for options, kib in ((), 1024), (("--readahead=4096",), 4096), (("--readahead=0",), 128):
        with lib.mount(_state["mount"].argv[-2], *options) as m:
            dev = os.stat(m.at).st_dev
            where = f"/sys/class/bdi/{os.major(dev)}:{os.minor(dev)}/read_ahead_kb"
            os.listdir(m.at)
            if not os.access(where, os.W_OK):
                print(f"{where} is not ours to write: nothing to look at")
                return
            with open(where, encoding="ascii") as f:
                equal(int(f.read()), kib, where)


def errors_stay_empty():
    """After all that, unmounting finds nothing wrong."""
    files()
    equal(_state["mount"].control("errors.json"), [], "errors.json")
    _state["mount"].unmount()


def parts_of_models_are_kept():
    """A model keeps its parts: what is read again opens nothing, also where a read goes through many of them."""
    source = lib.fresh("source")
    tensors = {f"t{i:04}": lib.rng("t", i).randbytes(40 + i % 7) for i in range(1500)} | {
        "u": lib.rng("u").randbytes(300_000), "v": lib.rng("v").randbytes(200_000)}
    arrays.write_sharded(source / "step-1", {k: ("U8", [len(data)], 0, data) for k, data in tensors.items()})
    with lib.mount(source) as m:
        path = m.at / "step-1" / "hf" / "model.safetensors"
        first, error = lib.outcome(path)
        equal(error, None, "the first read")
        equal({k: data for k, (_, _, data) in arrays.parse_safetensors(first)[0].items()}, tensors, "bytes")
        before = m.stats()
        equal(lib.sha(lib.outcome(path)[0]), lib.sha(first), "the second read")
        after = m.stats()
        check(after["read_bytes"] - before["read_bytes"] >= len(first), "the second read was answered from the kernel's cache")
        check(after["files_opened"] - before["files_opened"] < 10, f"{after['files_opened'] - before['files_opened']} files opened anew")
        check(after["reply_mapped"] > before["reply_mapped"], "long parts are copied")


lib.main(any_window_is_read, reads_end_at_the_end, direct_reads_agree, vectors_are_one_read, mapped_bytes_agree, sendfile_agrees,
         copy_file_range_agrees, many_processes_read, many_threads_read, other_modes_agree, small_steps_read_every_byte,
         the_option_sets_readahead, parts_of_models_are_kept, errors_stay_empty)
