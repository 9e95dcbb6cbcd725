"""Files inside disk images, without root, mount or virtual machine.

    import foliofs

    with foliofs.open_image("disk.qcow2", "r+") as fs:
        fs.write_text("/etc/motd", "hi")
        print(fs.read_text("/etc/os-release"))

Errors are OSError, with errno, filename and a message that names the cause.
"""

from foliofs._file import PositionedFile, RawFile, SyncedFile
from foliofs._file_system import (
    DirEntry,
    FileSystem,
    build_image,
    create_image,
    memory,
    open_directory,
    open_image,
)
from foliofs._native import Borrowed, __version__
from foliofs._path import FolioPath

__all__ = [
    "Borrowed",
    "DirEntry",
    "FileSystem",
    "FolioPath",
    "PositionedFile",
    "RawFile",
    "SyncedFile",
    "__version__",
    "build_image",
    "create_image",
    "memory",
    "open_directory",
    "open_image",
]
