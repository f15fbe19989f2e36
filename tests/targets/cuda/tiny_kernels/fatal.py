"""A file of kernels that ends the process that imports it."""

import os
import signal

os.kill(os.getpid(), signal.SIGTERM)
