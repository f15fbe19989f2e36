"""The World vocabulary, which RWKV models read texts by."""
