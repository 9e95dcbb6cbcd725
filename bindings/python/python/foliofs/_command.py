"""The command folio, which the wheel contains."""

from __future__ import annotations

from pathlib import Path


def executable() -> str:
    """Returns the path of the command. Raises FileNotFoundError if this installation has none."""
    path = Path(__file__).parent / "bin" / "folio"
    if not path.exists():
        raise FileNotFoundError(2, "the command folio is not in this installation", str(path))
    return str(path)
