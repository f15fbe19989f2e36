"""From a model directory to an artifact."""
