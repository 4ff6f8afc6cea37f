"""``python -m tilewright.calibrate.child NAME``: one microbenchmark on the GPU, a reading a line on stdout."""

from __future__ import annotations

import sys

from tilewright.backends.cuda import CudaBackend
from tilewright.calibrate import readings
from tilewright.calibrate.session import MICROBENCHMARKS
from tilewright.errors import TilewrightError


def main() -> int:
    """Run it; each reading is out before the next begins, so that a process that is ended has told what it knew."""
    backend = CudaBackend()
    sms = int(backend.device().details["sm_count"])
    try:
        for reading in MICROBENCHMARKS[sys.argv[1]].run(backend, sms):
            print(readings.line(reading), flush=True)
    except TilewrightError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
