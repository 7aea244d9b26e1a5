#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What completes, asked of the program, and of a real bash, zsh and fish that ask it; none of them runs a name."""
import json
import os
import pty
import select
import shutil
import subprocess
import time

from cli import DCPFS, GOLDEN, OK, SCRATCH, check, data, equal, finish, run, sample

ODD = ["model.norm", "model.$(touch PWNED)", "model.`touch PWNED`", "model.a b", "model.~x", "*", "other", "a:b=c", "bad\nkey"]
ENV = dict(os.environ, PATH=f"{SCRATCH}/bin:{os.environ['PATH']}", LC_ALL="C.UTF-8", TERM="dumb", HOME=str(SCRATCH),
           DCPFS_CACHE=str(SCRATCH / "cache"))


def make():
    """A place with a checkpoint of odd keys, a run of two versions, files that are sources, and one that is none."""
    place = SCRATCH / "place"
    (SCRATCH / "bin").mkdir()
    (SCRATCH / "bin" / "dcpfs").symlink_to(DCPFS)
    (place / "odd").mkdir(parents=True)
    head = {k: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, k in enumerate(ODD)}
    text = json.dumps(head).encode()
    (place / "odd" / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(len(ODD)))
    shutil.copytree(GOLDEN / "dcp-fsdp2" / "ckpt", place / "run 1")
    for name in ("w.safetensors", "m.pt", "a.tar.gz", "notes.txt", "mine.dcpl", "my.regions", ".hidden.pt"):
        (place / name).write_text("mesh tp=2\n* shard(0)@tp\n" if name.endswith("dcpl") else "")
    return place


def ask(*words):
    """Words that the program offers for the last of @words."""
    got = subprocess.run([DCPFS, "__complete", *words], capture_output=True, text=True, cwd=PLACE, env=ENV)
    equal(got.returncode, OK, f"__complete {words}")
    return [line.split("\t")[0] for line in got.stdout.splitlines()]


def the_program_completes_words():
    verbs = [v["name"] for v in data("help", "--json")["verbs"]]
    equal(ask("")[:len(verbs)], verbs, "verbs come first")
    check({"odd/", "run 1/", "w.safetensors", "m.pt", "a.tar.gz"} <= set(ask("")), "and sources to be mounted")
    for verb in data("help", "--json")["verbs"]:
        equal(ask(verb["name"], "-"), [f"--{o['name']}" for o in verb["options"]] + ["--quiet", "--json-progress", "--help"], f"options of {verb['name']}")
    sources = ["odd/", "run 1/", "w.safetensors", "m.pt", "a.tar.gz"]
    for words in (["ls", ""], ["mount", ""], ["cat", "--as", "npy", ""], ["plan", "--", ""]):
        equal(sorted(ask(*words)), sorted(sources), f"sources: {words}")
    equal(ask("ls", ".h"), [".hidden.pt"], "hidden ones when asked for")
    equal(ask("ls", "~/place/o"), ["~/place/odd/"], "below the home directory")
    equal(sorted(ask("mount", "odd", "")), ["odd/", "run 1/"], "a mount point is a directory")
    equal(sorted(ask("odd", "")), ["odd/", "run 1/"], "mount without the verb")
    versions = ["latest", "step-10", "step-20", "step-30"]
    for words in (["ls", "run 1", ""], ["tree", "run 1", ""], ["ls", "--version", ""], ["plan", "--layout", "fsdp2", "run 1", ""]):
        equal(ask(*words), versions if "run 1" in words else [], f"versions: {words}")
    equal(ask("ls", "run 1", "--version=st"), ["--version=step-10", "--version=step-20", "--version=step-30"], "as a value")
    equal(ask("ls", "~/place/run 1", "l"), ["latest"], "of a source below the home directory")
    for words in (["cat", "run 1", "model.no"], ["show", "run 1", "10", "model.no"], ["cat", "--version", "10", "run 1", "model.no"],
                  ["plan", "run 1", "10", "--svg", "--key", "model.no"]):
        equal(ask(*words), ["model.norm.weight"], f"keys: {words}")
    both = ask("cat", "run 1", "")
    check(both[:4] == versions and "model.norm.weight" in both, "KEY or VERSION may follow SOURCE")
    check("latest" not in ask("cat", "run 1", "10", ""), "behind VERSION only KEY")
    equal(sorted(ask("cat", "odd", "model.")), sorted(k for k in ODD if k.startswith("model.")), "keys as they are")
    check(not [k for k in ask("show", "odd", "") if k.startswith("bad")], "what cannot be typed is left out")
    equal(ask("cat", "--as", ""), ["raw", "npy", "safetensors"], "values of an option")
    equal(ask("cat", "--as=n"), ["--as=npy"], "attached")
    equal(ask("export", "--as", "torch-"), ["torch-dcp", "torch-save"], "formats that are written")
    equal(ask("mount", "-o", "ro,allow"), ["ro,allow_other"], "words of -o")
    check("uid=" in ask("mount", "-o", "u"), "with their =")
    check({"fsdp8", "tp4:", "mine.dcpl"} <= set(ask("plan", "run 1", "--layout", "")), "layouts")
    equal(ask("plan", "run 1", "--layout", "tp8:l"), ["tp8:llama"], "presets")
    shutil.copy(PLACE / "mine.dcpl", PLACE / "run 1" / "ours.dcpl")
    equal(ask("plan", "run 1", "--layout", "ou"), ["ours"], "layouts of the source")
    equal(sorted(ask("mount", "--layout", "m")), ["mine.dcpl"], "files of layouts")
    for verb, want in (("load", {"mine.dcpl", "my.regions"}), ("plan", {"mine.dcpl"}), ("save", {"mine.dcpl"})):
        equal({w for w in ask(verb, "run 1", "--layout", "m") if w.startswith("m")}, want, f"files of layouts for {verb}")
    equal(ask("help", "sh"), ["show"], "help of a verb")
    equal(ask("ls", "no-such", ""), [], "of nothing, nothing")


def talk(argv, setup, line, want):
    """What the line becomes in an interactive shell: @line, a tab, and then Control-X, which shows it."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(PLACE)
        os.execvpe(argv[0], argv, ENV)
    said, until = b"", time.monotonic() + 240

    def wait(mark):
        nonlocal said
        while mark not in said and time.monotonic() < until:
            if select.select([fd], [], [], 1)[0]:
                try:
                    said += os.read(fd, 65536)
                except OSError:
                    break
        return mark in said
    os.write(fd, setup.encode() + b"\necho rea''dy\n")
    check(wait(b"ready\r\n"), f"{argv[0]} starts: {said!r}")
    os.write(fd, line.encode() + b"\t\x18")
    wait(b">>\r\n")
    got = said.split(b"<<")[-1].split(b">>\r\n")[0].decode("utf-8", "replace")
    equal(got, want, f"{argv[0]}: {line!r} and a tab")
    os.write(fd, b"\x15exit\n")
    os.close(fd)
    os.waitpid(pid, 0)


LINES = (("dcpfs um", "dcpfs umount "), ("dcpfs cat --a", "dcpfs cat --as "), ("dcpfs cat --as=np", "dcpfs cat --as=npy "),
         ("dcpfs ls od", "dcpfs ls odd/"), ("dcpfs ls ru", r"dcpfs ls run\ 1/"), ("dcpfs ls w", "dcpfs ls w.safetensors "),
         (r"dcpfs ls run\ 1 step-1", r"dcpfs ls run\ 1 step-10 "), (r"dcpfs ls run\ 1 --version=l", r"dcpfs ls run\ 1 --version=latest "),
         ("dcpfs cat odd model.no", "dcpfs cat odd model.norm "), ("dcpfs cat odd a:", "dcpfs cat odd a:b=c "),
         ("dcpfs ls ~/place/o", "dcpfs ls ~/place/odd/"), ("dcpfs plan odd --layout tp4:l", "dcpfs plan odd --layout tp4:llama "),
         (r"dcpload run\ 1 step-1", r"dcpload run\ 1 step-10 "), ("dcpsave --forc", "dcpsave --force "))


def bash_completes_words():
    setup = ("PS1=; set +o history; source <(dcpfs help --completion bash); bind 'set enable-bracketed-paste off'; "
             "bind -x '\"\\C-x\": echo; echo \"<<$READLINE_LINE>>\"'")
    for line, want in LINES + ((r"dcpfs cat odd 'model.n", "dcpfs cat odd 'model.norm' "),
                               (r"dcpfs cat odd model.\$", r"dcpfs cat odd model.\$\(touch\ PWNED\) ")):
        talk(["bash", "--norc", "--noprofile", "-i"], setup, line, want)


def zsh_completes_words():
    setup = ("PS1= PROMPT_EOL_MARK=; autoload -Uz compinit; compinit -u -D; source <(dcpfs help --completion zsh); "
             "show() { print; print -r -- \"<<$BUFFER>>\" }; zle -N show; bindkey '^X' show; unsetopt zle_bracketed_paste")
    for line, want in LINES + ((r"dcpfs cat odd model.\$", r"dcpfs cat odd model.\$\(touch\ PWNED\) "),):
        talk(["zsh", "-f", "-i"], setup, line, want)


def fish_completes_words():
    script = SCRATCH / "dcpfs.fish"
    script.write_bytes(run("help", "--completion", "fish").stdout)
    for line, want in LINES:
        got = subprocess.run(["fish", "--no-config", "-c", 'source $argv[1]; complete -C "$argv[2]"', script, line],
                             capture_output=True, text=True, cwd=PLACE, env=ENV)
        last = want.replace("\\ ", " ").removeprefix(line.replace("\\ ", " ").rsplit(" ", 1)[0] + " ").rstrip(" ")
        equal((got.stderr, [x.split("\t")[0] for x in got.stdout.splitlines()]), ("", [last]), f"fish: {line!r}")


PLACE = make()
the_program_completes_words()
for shell, test in sample((("bash", bash_completes_words), ("zsh", zsh_completes_words), ("fish", fish_completes_words))):
    script = run("help", "--completion", shell)
    equal(script.returncode, OK, f"help --completion {shell}")
    if shutil.which(shell):
        parsed = subprocess.run([shell, "-n"], input=script.stdout, capture_output=True)
        equal((parsed.returncode, parsed.stderr), (0, b""), f"{shell} -n")
        test()
check(not (PLACE / "PWNED").exists(), "completion ran a key")
finish()
