"""`ingot inspect`: an artifact as text, JSON, a page and graphs."""
