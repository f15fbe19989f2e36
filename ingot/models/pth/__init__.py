"""Files of `torch.save`, read without running what they say: those of BlinkDL's RWKV models."""
