"""Getting models: those of the hub by their names, downloaded into its cache or found there."""
