"""Writes models as ONNX: the plain model, and the one with keys and values as inputs."""
