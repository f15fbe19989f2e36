"""Graph passes, from the exported graph to the fused, paged one."""
