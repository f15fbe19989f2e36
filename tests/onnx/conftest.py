"""Models on one thread: with tiny ones two threads mostly wait for each other."""

from __future__ import annotations

import torch
import transformers

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
