"""The jobs of the scenario `python` by one contender, in a process of its own.

    python jobs.py CONTENDER PLACE OPERATIONS SECONDS

PLACE is an image, or the root of a mount. The tree is that of mod.rs: `large`, and files in
`tree/NUMBER`. Each job first runs once without the clock, which warms the caches and checks the
content. Then it makes OPERATIONS operations, or as many as begin within SECONDS. The output is one
object of JSON: seconds of each operation, by job.
"""

import json
import os
import random
import sys
import time

BLOCK = 4096


class Plain:
    """Built-in open() and os on a mount."""

    def __init__(self, root):
        self.root = root
        self.large = os.open(root + "/large", os.O_RDONLY)
        self.size = os.fstat(self.large).st_size

    def preads(self, offsets):
        pread, large = os.pread, self.large
        for offset in offsets:
            data = pread(large, BLOCK, offset)
        return data

    def read_files(self, paths):
        root = self.root
        for path in paths:
            with open(root + path, "rb") as file:
                data = file.read()
        return data

    def walk(self):
        return sum(len(files) for _, _, files in os.walk(self.root + "/tree"))

    def stat_files(self, paths):
        root = self.root
        for path in paths:
            size = os.stat(root + path).st_size
        return size


class Foliofs:
    """foliofs on an image."""

    def __init__(self, image):
        import foliofs

        self.fs = foliofs.open_image(image, cache_bytes=1 << 30)
        self.large = self.fs.open("/large", "rb", 0)
        self.size = self.large.seek(0, 2)

    def preads(self, offsets):
        pread = self.large.pread
        for offset in offsets:
            data = pread(BLOCK, offset)
        return data

    def read_files(self, paths):
        open = self.fs.open
        for path in paths:
            with open(path, "rb") as file:
                data = file.read()
        return data

    def walk(self):
        return sum(len(files) for _, _, files in self.fs.walk("/tree"))

    def stat_files(self, paths):
        stat = self.fs.stat
        for path in paths:
            size = stat(path).st_size
        return size


class Stream:
    """A reader whose files are streams without pread."""

    def preads(self, offsets):
        large = self.large
        for offset in offsets:
            large.seek(offset)
            data = large.read(BLOCK)
        return data


class Ext4(Stream):
    """ext4 of PyPI."""

    def __init__(self, image):
        import ext4

        self.directory, self.regular = ext4.EXT4_FT.DIR, ext4.EXT4_FT.REG_FILE
        self.volume = ext4.Volume(open(image, "rb"))
        self.large = self.volume.inode_at("/large").open()
        self.size = self.large.seek(0, 2)

    def read_files(self, paths):
        for path in paths:
            data = self.volume.inode_at(path).open().read()
        return data

    def walk(self):
        count, left = 0, ["/tree"]
        while left:
            top = left.pop()
            for entry, kind in self.volume.inode_at(top).opendir():
                name = entry.name_str
                if kind == self.directory and name not in (".", ".."):
                    left.append(top + "/" + name)
                count += kind == self.regular
        return count

    def stat_files(self, paths):
        for path in paths:
            size = self.volume.inode_at(path).i_size
        return size


class Dissect(Stream):
    """dissect.extfs of PyPI."""

    def __init__(self, image):
        from dissect.extfs import ExtFS

        self.fs = ExtFS(open(image, "rb"))
        self.large = self.fs.get("/large").open()
        self.size = self.large.seek(0, 2)

    def read_files(self, paths):
        for path in paths:
            data = self.fs.get(path).open().read()
        return data

    def walk(self):
        import stat

        count, left = 0, [self.fs.get("/tree")]
        while left:
            for node in left.pop().iterdir():
                if node.filetype == stat.S_IFDIR and node.filename not in (".", ".."):
                    left.append(node)
                count += node.filetype == stat.S_IFREG
        return count

    def stat_files(self, paths):
        for path in paths:
            size = self.fs.get(path).size
        return size


CONTENDERS = {"plain": Plain, "foliofs": Foliofs, "ext4": Ext4, "dissect": Dissect}


def timed(work, items, limit, batch):
    """Returns seconds of each operation."""
    done = 0
    start = time.perf_counter()
    end = start + limit
    while done < len(items):
        work(items[done : done + batch])
        done += batch
        now = time.perf_counter()
        if now > end:
            break
    return (now - start) / min(done, len(items))


def check(is_right, what):
    if not is_right:
        sys.exit(f"wrong {what}")


def main(contender, place, operations, limit, files):
    paths = [f"/tree/{number // 100}/{number}" for number in range(files)]
    made = CONTENDERS[contender](place)
    rng = random.Random(1)
    blocks = made.size // BLOCK
    offsets = [rng.randrange(blocks) * BLOCK for _ in range(operations)]
    rng.shuffle(paths)
    for offset in offsets[:20]:
        check(made.preads([offset])[:8] == (offset // BLOCK).to_bytes(8, "little"), "block")
    for path in paths[:20]:
        name = path.rpartition("/")[2].encode()
        check(made.read_files([path]).startswith(name + b"\n"), path)
        check(made.stat_files([path]) == len(made.read_files([path])), "size of " + path)
    timed(made.preads, range(0, made.size, BLOCK), limit, 100)
    timed(made.read_files, paths, limit, 10)
    check(made.walk() == files, "number of files")
    out = {
        "preads": timed(made.preads, offsets, limit, 1000),
        "files": timed(made.read_files, paths, limit, 100),
        "stats": timed(made.stat_files, paths, limit, 100),
        "walk": timed(lambda turns: [made.walk() for _ in turns], range(5), limit, 1) / files,
    }
    print(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
