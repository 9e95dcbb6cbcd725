"""The command folio: `python -m foliofs`."""

import os
import sys

from foliofs._command import executable


def main() -> None:
    """Replaces this process by the command."""
    path = executable()
    os.execv(path, ["folio", *sys.argv[1:]])


if __name__ == "__main__":
    main()
