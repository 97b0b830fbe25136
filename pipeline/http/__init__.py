"""What a worker serves over HTTP."""
