"""Edge of the server, before and beside the application: keys, limits, queues, logs, shutdown."""
