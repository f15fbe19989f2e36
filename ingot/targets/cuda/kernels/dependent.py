"""Prologue of a program whose launch overlaps the end of the one before it."""

import triton
import triton.language as tl


@triton.jit
def wait_for_last():
    """Waits until all that was launched before has ended and can be read. Every program calls it
    before anything else, so that whoever waits for this launch waits for those before it, too.

    From here on the programs of the next launch may begin, and wait for this one.
    """
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
