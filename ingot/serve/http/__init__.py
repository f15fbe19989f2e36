"""The server's HTTP: routes, answers and streams over a registry of models."""
