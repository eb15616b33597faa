"""
Folders of rank 0 on the other nodes. A node that has the same files at the same path, as of a shared disk, reads these; another one gets a copy, below a folder
that ends with the group.
"""

import errno
import os

import torch

from .wire import Refused, no_space

part_bytes = 16 * 2**20


class Folders:
    def __init__(self, ranks, options, nodes):
        self.ranks = ranks
        self.is_alone = nodes is None
        self._root = options["folder"]  # ends with the group
        self._index = nodes["index"] if nodes else 0
        self._sent = set()

    @property
    def is_writer(self):
        """Whether this rank writes for those of its node."""
        return self._index > 0 and self.ranks.local == 0

    def here(self, folder, base_of):
        """Path on this node of a folder that rank 0 has, with the base of its adapters beside it."""
        if self.is_alone:
            return folder
        ranks = self.ranks
        wanted = ranks.share(described(folder, base_of) if ranks.is_first else None)
        lacks = any(files_in(one) != files for one, files in wanted)
        lacking = ranks.gather(lacks)
        for one, files in wanted:
            if any(lacking) and (one, files) not in self._sent:
                self._sent.add((one, files))
                self._send(one, files, 0, self.copy_of(one) if lacks and self.is_writer else None)
        ranks.gather(None)  # the others of a node read what its writer has written
        return self.copy_of(folder) if lacks else folder

    def own(self, folder):
        """The folder in which this node writes its part of a folder of rank 0."""
        if self._index == 0:
            return folder
        copy = self.copy_of(folder)
        os.makedirs(copy, exist_ok=True)
        return copy

    def collect(self, folder):
        """Brings what nodes have written there to rank 0."""
        if self.is_alone:
            return
        ranks = self.ranks
        own = self.copy_of(folder)
        parts = ranks.gather(files_in(own) if self.is_writer else ())
        for source, files in enumerate(parts):
            if files:
                self._send(own, files, source, folder if ranks.is_first else None)
        if self.is_writer:
            for name, *_ in files_in(own):
                os.unlink(os.path.join(own, name))

    def copy_of(self, folder):
        return os.path.join(self._root, "copies") + os.path.abspath(folder)

    def _send(self, folder, files, source, target):
        """The files of a rank's folder, to all ranks at once; those with a target write them. Where a disk is full, all refuse together at the end."""
        copy = Copy(target)
        for name, size, _ in files:
            reads = open(os.path.join(folder, name), "rb") if self.ranks.rank == source else None
            copy.begin(name)
            for start in range(0, size, part_bytes):
                part = torch.empty(min(part_bytes, size - start), dtype=torch.uint8)
                if reads is not None and reads.readinto(part.numpy()) != part.numel():
                    raise RuntimeError(f"{folder}: {name} became shorter while it was read")
                self.ranks.send(part, source)
                self.ranks.progress()
                copy.write(part)
            copy.end()
            if reads is not None:
                reads.close()
        full = [place for place in self.ranks.gather(copy.full) if place is not None]
        if full:
            raise Refused("StoreFull", no_space(full[0]))


class Copy:
    """Writes files below a target, None for none. Keeps where a disk was full: a rank that raised while others send would leave them waiting."""

    def __init__(self, target):
        self.full = None
        self._target = target
        self._file = None

    def begin(self, name):
        self._try(lambda: self._open(name))

    def write(self, part):
        if self._file is not None:
            self._try(lambda: self._write(part))

    def end(self):
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self, name):
        if self._target is None or self.full is not None:
            return
        os.makedirs(self._target, exist_ok=True)
        self._file = open(os.path.join(self._target, name), "wb", buffering=0)

    def _write(self, part):
        if self._file.write(part.numpy()) < part.numel():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _try(self, work):
        try:
            work()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.full = self._target
            self.end()


def described(folder, base_of):
    base = base_of(folder)
    return tuple((one, files_in(one)) for one in (folder, base) if one is not None)


def files_in(folder):
    """Names, sizes and times of its files. Files of one disk have one time on all nodes, and copies have others."""
    if not os.path.isdir(folder):
        return ()
    paths = ((name, os.stat(os.path.join(folder, name))) for name in sorted(os.listdir(folder)))
    return tuple((name, state.st_size, state.st_mtime_ns) for name, state in paths if os.path.isfile(os.path.join(folder, name)))
