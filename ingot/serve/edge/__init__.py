"""What stands before the application and beside it: keys, limits, queues, logs, the end."""
