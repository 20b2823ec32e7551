# SPDX-License-Identifier: Apache-2.0
"""Builds the states that a disk may show after a power cut, from a log of record_calls.c.

What is certain: the bytes of a file up to its last fsync, the entries of a directory up to the fsync of that directory. What came
later may be absent or present: of each directory the first so many changes (a file system orders the changes of one directory, not
those of two), of each file any mixture of old and new blocks, with the old or the new length, and zeros in what was never written.
"""
import hashlib
import itertools
import os
import random

PAGE, SECTOR = 4096, 512
PRODUCT_MAX = 24  # more choices of directory changes than this at one cut are sampled
RENAME_EXCHANGE = 2
DIRECTORY = "directory"


class ReplayError(Exception):
    pass


class File:
    def __init__(self, data=b""):
        self.versions = [data]  # [0] is on the disk; the last one is what a program reads
        self.touched = [(0, 0)]  # the bytes that each version changed
        self.made = {}  # mode -> hash

    def change(self, data, begin, end):
        self.versions.append(data)
        self.touched.append((begin, end))
        self.made = {}

    def sync(self):
        self.versions, self.touched, self.made = self.versions[-1:], [(0, 0)], {}

    def cut(self, mode, contents):
        """The hash of the bytes after a cut. mode: none, zeros, all, last, first, or a seed."""
        if len(self.versions) == 1:
            mode = "all"
        if mode not in self.made:
            self.made[mode] = contents.keep(self.mix(mode))
        return self.made[mode]

    def mix(self, mode):
        versions, last = self.versions, len(self.versions) - 1
        if mode in ("none", "all"):
            return versions[0 if mode == "none" else last]
        rng = random.Random(f"{mode} {last} {len(versions[last])}")
        size, length = PAGE, len(versions[last])
        if mode == "first":  # the first changes in order, and a part of the next one
            size, upto = SECTOR, rng.randrange(last)
            torn = rng.randrange(*self.span(upto + 1))
            length = len(versions[upto + 1])

            def choose(at):
                return upto + 1 if at < torn else upto
        elif mode == "zeros":
            def choose(at):
                return 0
        elif mode == "last":
            begin, end = self.touched[last]

            def choose(at):
                return last if begin < at + size and at < end else 0
        else:
            size = (PAGE, SECTOR)[mode % 2]
            length = len(versions[rng.randrange(last + 1)])

            def choose(at):
                return rng.choice((0, last, rng.randrange(last + 1)))
        blocks = []
        for at in range(0, length, size):
            block = versions[choose(at)][at:min(at + size, length)]
            blocks.append(block + bytes(min(size, length - at) - len(block)))
        return b"".join(blocks)

    def span(self, version):
        begin, end = self.touched[version]
        return begin, max(begin + 1, end)


class Directory:
    def __init__(self):
        self.disk, self.entries, self.changes = {}, {}, []

    def assign(self, *pairs):
        """One change: each name becomes an entry of this node, or none if it is None."""
        self.changes.append(pairs)
        apply(self.entries, pairs)

    def sync(self):
        self.disk, self.changes = dict(self.entries), []

    def cut(self, count):
        entries = dict(self.disk)
        for pairs in self.changes[:count]:
            apply(entries, pairs)
        return entries


def apply(entries, pairs):
    for name, node in pairs:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def digest(data):
    return hashlib.blake2b(data, digest_size=12).hexdigest()


class Contents:
    """The bytes of every file of every state, by their hashes."""

    def __init__(self):
        self.by_hash = {}

    def keep(self, data):
        key = digest(data)
        self.by_hash.setdefault(key, data)
        return key


def read_tree(folder, contents):
    """{path: hash, or DIRECTORY} of what is under the folder."""
    tree = {}
    for parent, folders, files in os.walk(folder):
        at = os.path.relpath(parent, folder)
        for name in folders:
            tree[os.path.normpath(os.path.join(at, name))] = DIRECTORY
        for name in files:
            with open(os.path.join(parent, name), "rb") as f:
                tree[os.path.normpath(os.path.join(at, name))] = contents.keep(f.read())
    return tree


def write_tree(tree, folder, contents):
    os.mkdir(folder)
    for path in sorted(tree):
        if tree[path] == DIRECTORY:
            os.mkdir(os.path.join(folder, path))
        else:
            with open(os.path.join(folder, path), "wb") as f:
                f.write(contents.by_hash[tree[path]])


def below(tree, path):
    """The part of a tree at a path: {"": hash} of a file, {"": DIRECTORY, "name": hash} of a directory, {} if it is not there."""
    return {p[len(path):].lstrip("/"): h for p, h in tree.items() if p == path or p.startswith(path + "/")}


class Disk:
    def __init__(self, before, contents):
        self.contents, self.open, self.root = contents, {}, Directory()
        self.nodes = [self.root]
        for path in sorted(before):
            self.nodes.append(Directory() if before[path] == DIRECTORY else File(contents.by_hash[before[path]]))
            parent, name = self.parent(path)
            parent.assign((name, self.nodes[-1]))
        for node in self.nodes:
            node.sync()

    def node(self, path):
        at = self.root
        for name in path.split("/") if path != "." else []:
            at = at.entries[name]
        return at

    def parent(self, path):
        folder, _, name = path.rpartition("/")
        return self.node(folder or "."), name

    def make(self, path, node):
        self.nodes.append(node)
        parent, name = self.parent(path)
        parent.assign((name, node))
        return node

    def step(self, call):
        """Replays a call; True if it changed what a cut may show."""
        name, key, a, b, path, other, data = call
        if name == "open":
            node = self.make(path, File()) if b else self.node(path)
            if a and node.versions[-1]:
                node.change(b"", 0, len(node.versions[-1]))
            self.open[key] = node
            return bool(b or a)
        if name == "close":
            del self.open[key]
            return False
        if name == "write":
            old = self.open[key].versions[-1]
            self.open[key].change(old[:a] + bytes(max(0, a - len(old))) + data + old[a + len(data):], a, a + len(data))
        elif name in ("truncate", "allocate"):
            node = self.open[key]
            old, size = node.versions[-1], a if name == "truncate" else a + b
            if name == "allocate" and size <= len(old):
                return False
            node.change(old[:size] + bytes(max(0, size - len(old))), min(size, len(old)), max(size, len(old)))
        elif name == "sync":
            self.open[key].sync()
        elif name == "syncall":
            for node in self.nodes:
                node.sync()
        elif name == "mkdir":
            self.make(path, Directory())
        elif name == "remove":
            parent, entry = self.parent(path)
            parent.assign((entry, None))
        elif name == "link":
            parent, entry = self.parent(other)
            parent.assign((entry, self.node(path)))
        elif name == "rename":
            (old, entry), (new, target) = self.parent(path), self.parent(other)
            if old is not new:
                raise ReplayError(f"{path} -> {other}: a rename between directories is not replayed")
            left = new.entries[target] if a & RENAME_EXCHANGE else None
            if entry != target:
                old.assign((entry, left), (target, old.entries[entry]))
        else:
            raise ReplayError(f"{name}: not replayed")
        return True

    # ---- states ----

    def tree(self, counts, mode):
        """The state with so many changes of each directory, and files cut in this mode."""
        tree = {}

        def walk(directory, path):
            for name, node in directory.cut(counts.get(directory, 0)).items():
                if isinstance(node, Directory):
                    tree[path + name] = DIRECTORY
                    walk(node, path + name + "/")
                else:
                    tree[path + name] = node.cut(mode, self.contents)
        walk(self.root, "")
        return tree

    def live(self):
        return self.tree({d: len(d.changes) for d in self.nodes if isinstance(d, Directory)}, "all")

    def choices(self, rng):
        """How many changes of each directory survive: all combinations, or if those are too many, a sample with the extremes."""
        waiting = [d for d in self.nodes if isinstance(d, Directory) and d.changes]
        product = 1
        for d in waiting:
            product *= len(d.changes) + 1
        if product <= PRODUCT_MAX:
            some = itertools.product(*(range(len(d.changes) + 1) for d in waiting))
        else:
            none, every = [0] * len(waiting), [len(d.changes) for d in waiting]
            some = [none, every]
            for at, d in enumerate(waiting):  # one directory's changes without those of the others, and the reverse
                some.append(none[:at] + [len(d.changes)] + none[at + 1:])
                some.append(every[:at] + [0] + every[at + 1:])
            some += [[rng.randrange(len(d.changes) + 1) for d in waiting] for _ in range(PRODUCT_MAX)]
        return [dict(zip(waiting, counts)) for counts in some]

    def states(self, rng, seeds):
        """(variant, tree) of the states after a cut at this moment; many are the same."""
        modes = ["none", "zeros", "all", "last", "first", *seeds]
        if not any(isinstance(n, File) and len(n.versions) > 1 for n in self.nodes):
            modes = ["all"]
        for counts in self.choices(rng):
            for mode in modes:
                yield f"directories {list(counts.values())}, data {mode}", self.tree(counts, mode)


def read_log(path):
    with open(path, "rb") as f:
        log = f.read()
    at = 0
    while at < len(log):
        end = log.index(b"\n", at)
        name, pid, fd, a, b, *sizes = log[at:end].decode().split(" ")
        parts, at = [], end + 1
        for size in map(int, sizes):
            parts.append(log[at:at + size])
            at += size
        yield name, (int(pid), int(fd)), int(a), int(b), parts[0].decode(), parts[1].decode(), parts[2]
