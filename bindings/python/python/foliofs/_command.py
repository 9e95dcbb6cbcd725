"""The command folio, which the wheel contains."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class CommandError(Exception):
    """The command folio failed: its message, and `exit_code`."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code)
        self.exit_code: int = exit_code

    def __str__(self) -> str:
        return str(self.args[0])


def executable() -> str:
    """Returns the path of the command. Raises FileNotFoundError if this installation has none."""
    path = Path(__file__).parent / "bin" / "folio"
    if not path.exists():
        raise FileNotFoundError(2, "the command folio is not in this installation", str(path))
    return str(path)


def build_image(
    path: str | os.PathLike[str],
    *,
    tree: str | os.PathLike[str],
    size: int | str = "auto",
    label: str | None = None,
    uuid: str | None = None,
    source_date_epoch: int | None = None,
    chown: str | None = None,
    chmod: str | None = None,
    manifest: str | os.PathLike[str] | None = None,
) -> None:
    """Creates an image with an ext4 file system and a copy of the directory `tree` in it.

    `size` is a number of bytes, "512M", "2G", or "auto" for the least that holds the tree
    ("auto+20%" leaves room).
    The format is qcow2 for names that end so, else raw. With `uuid` and `source_date_epoch`, in
    seconds since 1970, the same tree makes the same bytes. `chown`, `chmod` and `manifest` are
    options of `folio cp`.

    Raises FileExistsError if the image exists, CommandError if it cannot be built; no file is left.
    """
    image = os.path.abspath(path)
    if os.path.lexists(image):
        raise FileExistsError(17, "the image exists", image)
    command = [executable(), "cp", "--quiet", "-a", os.path.join(os.path.abspath(tree), ".")]
    command += [f"{image}:/", "--create", str(size)]
    options = {
        "--label": label,
        "--uuid": uuid,
        "--chown": chown,
        "--chmod": chmod,
        "--manifest": manifest,
    }
    for option, value in options.items():
        if value is not None:
            command += [option, os.fspath(value)]
    environment = dict(os.environ)
    if source_date_epoch is not None:
        environment["SOURCE_DATE_EPOCH"] = str(source_date_epoch)
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise CommandError(done.stderr.strip(), done.returncode)
