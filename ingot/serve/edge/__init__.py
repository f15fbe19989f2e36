"""What stands before the application and beside it: keys, limits, queues, logs, the end."""

from ingot.serve.edge.edge import Edge
from ingot.serve.edge.settings import EdgeSettings, Limits

__all__ = ["Edge", "EdgeSettings", "Limits"]
