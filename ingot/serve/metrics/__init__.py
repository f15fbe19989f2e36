"""What is measured of a server and its models, and how it is told."""
