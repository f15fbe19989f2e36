"""A file of kernels whose import never ends; it tells the pipe beside the order when it begins."""

import signal
import sys
from pathlib import Path

pipe = Path(sys.argv[1]).with_name("pipe")
if pipe.exists():
    with pipe.open("w") as end:
        print("started", file=end, flush=True)
        signal.pause()
signal.pause()
