"""Loads a file into a GPU by kvikio, if that is installed, and prints the rates."""

import os
import sys
import time

try:
    import cupy
    import kvikio
except ImportError as error:
    sys.exit(print(f"kvikio: not measured: {error}"))

path = sys.argv[1]
size = os.path.getsize(path)
for state in ("first", "cached"):
    start = time.perf_counter()
    buffer = cupy.empty(size, dtype=cupy.uint8)
    with kvikio.CuFile(path, "r") as file:
        count = file.read(buffer)
    cupy.cuda.Device().synchronize()
    rate = size / (time.perf_counter() - start) / 1e9
    assert count == size, f"{count} of {size} bytes"
    print(f"kvikio from a host file, {state}: {rate:.2f} GB/s")
with open(path, "rb") as file:
    assert cupy.asnumpy(buffer).tobytes() == file.read(), "bytes differ"
