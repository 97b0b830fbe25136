"""What goes wrong with the embedded server, in one line a user can act on."""


class EmbeddedError(Exception):
    """There is no embedded server to use; the message says why and what to do. Nothing is left half started."""
