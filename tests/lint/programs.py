#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fail when a test starts a program that a bare Debian lacks: no package of `tools/packages.sh list test` ships it, and none
that these depend on or that every Debian has. A program that the test looks for (shutil.which, command -v) may be absent.

A program is the first word of a list that Python gives to subprocess or os.exec*, also through functions of the tests; the word
after a wrapper like unshare; and what stands where a command stands in a shell script or in a text for `sh -c`. Names that are
computed are not seen. Which package ships a program is what dpkg says of this machine, which must have the packages.

usage: programs.py ROOT
"""
import ast
import collections
import os
import pathlib
import re
import shlex
import subprocess
import sys

import tree

BY_HAND = ("tests/gen/", "tests/bench/", "tests/mutate.py", "tests/fuzz/run.sh")  # no test starts them
SCRIPTS = ("tools/demo.sh", "tools/packages.sh")
OURS = {"dcpfs", "dcpload", "dcpsave"}
STARTS = {*(("subprocess", f) for f in ("run", "Popen", "call", "check_call", "check_output")),
          *(("os", f"execv{e}") for e in ("", "e", "p", "pe"))}
WRAPPERS = {"unshare", "prlimit", "setpriv", "timeout", "env"}
LISTS = {"list", "map", "tuple", "get"}
BUILTIN = set(". : [ break builtin cd command compgen complete continue declare echo eval exec exit export false hash kill local "
              "printf pwd read return set shift source test times trap true type ulimit umask unset wait "
              "case esac for in done fi } function".split())
AGAIN = set("if then elif else while until do ! { ( time".split())  # what follows stands where a command stands
TEXTS = {"show", "timed"}  # functions of demo.sh: their argument is a script
PROGRAM = re.compile(r"[a-z][\w.+-]*$")


def in_shell(text):
    """The programs of a shell script."""
    text = re.sub(r"<<-?\s*'?(\w+)'?.*?^\s*\1$", "", text, flags=re.M | re.S)  # here-documents
    text = re.sub(r"(?<=\S)#", "_", text.replace("\\\n", " "))
    text = re.sub(r"\$\(\(.*?\)\)", "0", text)
    known = BUILTIN.union(*re.findall(r"^\s*(\w+)\(\)|\bcommand -v (\w+)", text, re.M))
    found, pending = set(), ""
    for line in text.split("\n"):
        pending += line + "\n"
        lexer = shlex.shlex(pending, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # the end of a quotation is in a later line
            continue
        pending, command = "", True
        for word, after in zip(words, [*words[1:], ""]):
            found.update(*map(in_shell, re.findall(r"\$\((.*?)\)", word)))
            if set(word) <= set("();|&<>"):
                command = "<" not in word and ">" not in word
            elif command and not re.match(r"\w+=", word) and word not in AGAIN:
                command = False
                if word in TEXTS:
                    found |= in_shell(after)
                elif PROGRAM.match(word) and after != ")" and word not in known:
                    found.add(word)
    return found


class Python:
    """The programs of one Python file. @passing: (module, name) of the functions, of all files, that start their arguments."""

    def __init__(self, rel, text, passing):
        self.module, self.passing, self.programs, self.asked = pathlib.Path(rel).stem, passing, set(), set()
        self.values, self.imports, self.busy = collections.defaultdict(list), {}, set()
        self.nodes = ast.parse(text)
        for node in ast.walk(self.nodes):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self.values[getattr(target, "id", None)].append(node.value)
            elif isinstance(node, ast.ImportFrom):
                self.imports.update({n.asname or n.name: (node.module, n.name) for n in node.names})

    def function(self, call):
        """(module, name) of what is called."""
        if isinstance(call.func, ast.Name):
            return self.imports.get(call.func.id, (self.module, call.func.id))
        owner = getattr(getattr(call.func, "value", None), "id", "self")
        return self.module if owner == "self" else owner, getattr(call.func, "attr", "")

    def visit(self, node, inside):
        """Every call below @node, in the function @inside."""
        if isinstance(node, ast.Call):
            name = self.function(node)
            if name in STARTS and node.args:
                self.command(node.args[0], inside)
            elif name in self.passing:
                self.words(node.args, inside)
                self.command(node.args[0] if node.args else None, inside)
        asks = getattr(node, "test", node if isinstance(node, (ast.Assign, ast.Expr, ast.Return)) else None)
        if asks and "which" in [self.function(c)[1] for c in ast.walk(asks) if isinstance(c, ast.Call)]:
            self.asked |= {c.value for c in ast.walk(asks) if isinstance(c, ast.Constant)}
        for child in ast.iter_child_nodes(node):
            self.visit(child, node if isinstance(node, ast.FunctionDef) else inside)

    def command(self, node, inside):
        """Note what @node, the words of a command, starts. True: these words have the program, whatever follows them."""
        if isinstance(node, (ast.List, ast.Tuple)):
            return self.words(node.elts, inside)
        if isinstance(node, ast.Name):
            args = inside.args if inside else ast.arguments([], [])
            if node.id in [a.arg for a in (*args.args, args.vararg) if a]:
                self.passing.add((self.module, inside.name))
            elif node.id not in self.busy:
                self.busy.add(node.id)
                whole = [self.command(value, inside) for value in self.values[node.id]]
                self.busy.discard(node.id)
                return any(whole)
        elif node and (not isinstance(node, ast.Call) or self.function(node)[1] in LISTS):
            return any([self.command(child, inside) for child in ast.iter_child_nodes(node)])  # a + b, x or y, a[k], list(a)
        return False

    def words(self, words, inside):
        for before, word, option, script in zip([None, *words], words, [*words[1:], None], [*words[2:], None, None]):
            text = getattr(word, "value", None)
            if isinstance(word, ast.Starred):
                if self.command(word.value, inside):
                    return True
                continue
            if not isinstance(text, str):
                return True
            if text in ("sh", "bash") and script and getattr(option, "value", "") == "-c":
                texts = [c.value for c in ast.walk(script) if isinstance(c, ast.Constant) and isinstance(c.value, str)]
                self.programs |= in_shell(" ".join(texts))
            if PROGRAM.match(text) and not str(getattr(before, "value", "")).startswith("-"):
                self.programs.add(text)
                if text not in WRAPPERS:
                    return True
        return False


def started(root):
    """{program: a file that starts it}"""
    found, passing = {}, set()
    for rel in (*SCRIPTS, *tree.select(root, ".sh", under=("tests",))):
        if not rel.startswith(BY_HAND) and (pathlib.Path(root) / rel).exists():
            found.update(dict.fromkeys(in_shell(tree.text(root, rel)), rel))
    files = {rel: Python(rel, tree.text(root, rel), passing)
             for rel in tree.select(root, ".py", under=("tests",)) if not rel.startswith(BY_HAND)}
    known = -1
    while known < len(passing):
        known = len(passing)
        for rel, file in files.items():
            file.visit(file.nodes, None)
            found.update(dict.fromkeys(file.programs - file.asked, rel))
    return {program: rel for program, rel in found.items() if program not in OURS}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def shipped_by(wanted):
    """The packages that are there when those are installed on a bare Debian."""
    needs, provided, have = {}, collections.defaultdict(set), set(wanted) | {"apt"}
    form = "${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\t${Essential} ${Priority}\n"
    for line in output("dpkg-query", "-W", "-f", form).splitlines():
        name, provides, depends, kind = line.split("\t")
        needs[name] = re.findall(r"[a-z0-9][a-z0-9+.-]+(?= *[,|(:]| *$)", re.sub(r"\(.*?\)", "", depends))
        for what in (name, *re.sub(r"\(.*?\)", "", provides).replace(",", " ").split()):
            provided[what].add(name)
        if "yes" in kind or "required" in kind:
            have.add(name)
    waiting = list(have)
    while waiting:
        for need in needs.get(waiting.pop(), ()):
            new = provided[need] - have
            have |= new
            waiting += new
    return have


def owners(programs):
    """{program: the package that ships it here}, through Debian's alternatives."""
    paths = collections.defaultdict(set)
    for program in programs:
        for folder in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
            path = f"{folder}/{program}"
            while os.path.lexists(path):
                for name in (path, path.removeprefix("/usr")):
                    paths[name].add(program)
                if not os.path.islink(path):
                    break
                path = os.path.join(os.path.dirname(path), os.readlink(path))
    said = subprocess.run(["dpkg-query", "-S", *sorted(paths)], capture_output=True, text=True).stdout
    return {program: package for package, path in re.findall(r"^([a-z0-9][^ ,:]*)\S*: (/.*)$", said, re.M) for program in paths[path]}


def main(root):
    found = started(root)
    try:
        packages = output("sh", f"{root}/tools/packages.sh", "list", "test").split()
        have = shipped_by(packages)
    except OSError as why:
        tree.skip("programs", f"not a Debian: {why}")
    missing = have.difference(output("dpkg-query", "-W", "-f", "${Package}\n").split())
    if missing:
        tree.skip("programs", "tools/packages.sh test has not installed " + " ".join(sorted(missing)))
    by = owners(found)
    bad = [f"{rel}: starts {program}, which {by.get(program, 'no package')} ships: not in the list of tools/packages.sh test"
           for program, rel in sorted(found.items()) if by.get(program) not in have]
    tree.finish("programs", bad, len(found))


if __name__ == "__main__":
    main(sys.argv[1])
