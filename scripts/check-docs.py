#!/usr/bin/env python3
"""Checks that the documents name things that exist.

In every *.md file of the repository:
- relative links lead to a file, and to a heading of it if they have an anchor;
- paths in backticks are files or directories of the repository, given from its root, from the document's directory, or by
  their last components (`fep/transmit.rs`);
- `Type::member` and `module::item` in backticks are defined in the sources, and CamelCase names occur in them;
- scripts, tests and examples in commands (`scripts/x.sh`, `--test x`, `--example x`, `--bench x`) exist.

Of the change log only links are checked: it names what is gone.

Prints FILE:LINE and the missing thing for each finding, and fails if there is one.
"""
import functools
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Components that stand for something else: NAME.rs, PATH.lock, testbed-*.
PLACEHOLDER = re.compile(r"(^|[/.])[A-Z]{2,}(?![a-z])(?!\.md)|[*…<>$~]")
EXTENSIONS = "rs|sh|py|md|toml|cm|topo|pcap|svg|links|c|h"
PATH = re.compile(r"^[\w.{},-]+(/[\w.{},-]+)*/?$")
ITEM = re.compile(r"^([A-Za-z_]\w*(?:::[A-Za-z_]\w*)+)(?:\(.*\)|!)?$", re.S)
CAMEL = re.compile(r"^[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+$")
# First components of items of other projects.
FOREIGN = {"std", "core", "alloc", "bytes", "tracing", "rustix", "libc", "tokio"}
# Names in CamelCase that are not items of weft.
FOREIGN_NAMES = {"GitHub"}
# Files of other projects.
FOREIGN_FILES = {"packet-uet.c"}
FENCE = re.compile(r"^(\s*)(```|~~~)")


def tracked():
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    return [name for name in names if name and os.path.exists(os.path.join(ROOT, name))]


FILES = tracked()
DIRECTORIES = {os.path.dirname(name) for name in FILES}
DIRECTORIES |= {"/".join(d.split("/")[:n]) for d in DIRECTORIES for n in range(1, d.count("/") + 2)}
DIRECTORIES.discard("")
KNOWN = set(FILES) | DIRECTORIES
TAILS = {"/".join(name.split("/")[n:]) for name in KNOWN for n in range(name.count("/") + 1)}
TOP = {name.split("/")[0] for name in DIRECTORIES}


@functools.cache
def text(name):
    with open(os.path.join(ROOT, name), encoding="utf-8", errors="replace") as file:
        return file.read()


RUST = [name for name in FILES if name.endswith(".rs")]
SOURCES = [name for name in FILES if name.endswith((".rs", ".py", ".sh", ".c", ".h", ".toml"))]


@functools.cache
def words_of(name):
    return set(re.findall(r"\w+", text(name)))


@functools.cache
def words():
    return set().union(*map(words_of, SOURCES))


@functools.cache
def modules():
    """Names of modules and crates, and the files that each consists of."""
    found = {}
    for name in RUST:
        parts = name[: -len(".rs")].split("/")
        for part in parts:
            found.setdefault(part.replace("-", "_"), []).append(name)
    for name in FILES:
        if name.endswith("Cargo.toml"):
            package = re.search(r'^name = "([\w-]+)"', text(name), re.M)
            inside = [file for file in RUST if file.startswith(os.path.join(os.path.dirname(name), "src") + "/")]
            if package:
                found.setdefault(package[1].replace("-", "_"), []).extend(inside)
    return found


@functools.cache
def definers(name):
    """The files that define a type or implement it, or make up a module."""
    defines = re.compile(
        rf"\b(struct|enum|union|trait|type|mod)\s+{name}\b|\bimpl\b[^{{;]*\b{name}\b|\bas\s+{name}\b|^\s*{name}\s*\{{", re.M
    )
    candidates = [file for file in RUST if name in words_of(file)]
    return [file for file in candidates if defines.search(text(file))] + modules().get(name, [])


@functools.cache
def is_defined(owner, member):
    if member in modules() and any(f"/{owner}/" in f"/{name}" for name in modules()[member]):
        return True
    member_is = re.compile(
        rf"\b(fn|const|static|struct|enum|union|trait|type|mod|macro_rules!)\s+{member}\b"
        rf"|^\s*(pub(\([^)]*\))?\s+)?{member}\s*(:|,|\(|\{{|=|$)|\buse\b[^;]*\b{member}\b|[{{,(]\s*{member}\s*[:,}}(]",
        re.M,
    )
    return any(member in words_of(file) and member_is.search(text(file)) for file in definers(owner))


def missing_item(path):
    parts = path.split("::")
    if parts[0] in FOREIGN or any(re.fullmatch(r"[A-Z]+", part) and part in {"NAME", "TYPE"} for part in parts):
        return None
    if not definers(parts[0]):
        return f"nothing is called `{parts[0]}`"
    for owner, member in zip(parts, parts[1:]):
        if not is_defined(owner, member):
            return f"`{owner}` has no `{member}`"
    return None


def expand(path):
    """The alternatives of braces: a/{b,c}.rs."""
    brace = re.search(r"\{([^{}]*)\}", path)
    if not brace:
        return [path]
    before, after = path[: brace.start()], path[brace.end() :]
    return [name for choice in brace[1].split(",") for name in expand(before + choice + after)]


def exists(path, document):
    path = path.rstrip("/")
    beside = os.path.normpath(os.path.join(os.path.dirname(document), path))
    return path in TAILS or beside in KNOWN


def is_path(span):
    if not PATH.match(span) or PLACEHOLDER.search(span) or span.startswith((".", "/")) or span in FOREIGN_FILES:
        return False
    if re.search(rf"\w\.({EXTENSIONS})$", span):
        return True
    return "/" in span and (span.endswith("/") or span.split("/")[0] in TOP)


def missing_path(span, document):
    gone = [path for path in expand(span) if not exists(path, document)]
    return f"no file {', '.join(gone)}" if gone else None


def missing_in_command(command):
    for script in re.findall(r"(?<![\w/.-])(scripts/[\w.-]+\.(?:sh|py))", command):
        if script not in KNOWN:
            yield f"no file {script}"
    for kind, name in re.findall(r"--(test|example|bench) ([\w-]+)", command):
        folder = {"test": "tests", "example": "examples", "bench": "benches"}[kind]
        if not any(f"{folder}/{name}{end}" in TAILS for end in (".rs", "/main.rs")):
            yield f"no {kind} {name}"


def slug(heading):
    heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


@functools.cache
def anchors(document):
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text(document), re.M)}


def missing_link(target, document):
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    file = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
    if file not in KNOWN and file != ".":
        return f"no file {file}, which a link leads to"
    if anchor and file.endswith(".md") and anchor not in anchors(file):
        return f"no heading #{anchor} in {file}, which a link leads to"
    return None


def without_code_blocks(content):
    """The text with fenced blocks blanked, and the blocks' lines with their numbers."""
    kept, code, inside = [], [], False
    for number, line in enumerate(content.split("\n"), 1):
        if FENCE.match(line):
            inside = not inside
            kept.append("")
        elif inside or line.startswith("    "):
            code.append((number, line))
            kept.append("" if inside else line)
        else:
            kept.append(line)
    return "\n".join(kept), code


def findings(document):
    prose, code = without_code_blocks(text(document))
    for link in re.finditer(r"\]\(([^()\s]+)\)", prose):
        what = missing_link(link[1], document)
        if what:
            yield prose.count("\n", 0, link.start()) + 1, what
    if document == "CHANGELOG.md":
        return
    for number, line in code:
        for what in missing_in_command(line):
            yield number, what
    for span in re.finditer(r"(?<!`)`([^`]+)`(?!`)", prose):
        number, content = prose.count("\n", 0, span.start()) + 1, " ".join(span[1].split())
        problems = list(missing_in_command(content))
        if ITEM.match(content):
            problems.append(missing_item(ITEM.match(content)[1]))
        elif is_path(content):
            problems.append(missing_path(content, document))
        elif CAMEL.match(content) and content not in words() | FOREIGN_NAMES:
            problems.append(f"`{content}` occurs nowhere in the sources")
        for what in filter(None, problems):
            yield number, what


def main():
    documents = [name for name in FILES if name.endswith(".md")]
    count = 0
    for document in documents:
        for number, what in sorted(set(findings(document))):
            print(f"{document}:{number}: {what}")
            count += 1
    if count:
        sys.exit(f"{count} names in the documents are wrong")


main()
