"""Matrices that a checkpoint stores quantized: one file a format.

`resolve.py` puts them into the tensors of a checkpoint by the names of the numbers that they stand
for, so families and their weight tables see `x.weight` with its shape. No torch.
"""
