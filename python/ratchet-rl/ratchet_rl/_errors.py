class RatchetError(Exception):
    """A failure that says what to do. `code` is as in Ratchet itself: `ServerUnavailable`, `RunNotFound`, `ConfigInvalid`, …"""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
