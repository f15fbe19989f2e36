"""The tensors of model directories: files, formats, and where each parameter lies."""
