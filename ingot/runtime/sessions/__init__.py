"""Sessions: sequences that stay when their requests have ended, and files of their states."""
