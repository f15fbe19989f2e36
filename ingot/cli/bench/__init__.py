"""`ingot bench`: a model beside the limits of this machine, and a server under load."""
