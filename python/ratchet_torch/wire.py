"""The wire to Ratchet: one JSON object a line, over a socket. A line is small; whatever is large is a file that a line names."""

import json

line_bytes_max = 4 * 2**20


class Refused(Exception):
    """Asking again does not help. Every rank raises it at the same place, before any of them waits for another."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def no_space(place):
    return f"No space left to write {place}. Free some space; the run continues by itself."


def says_full_disk(error):
    """Reports a full disk of the rank that writes; states.py looks at all ranks."""
    return any(sign in str(error) for sign in ("No space left on device", "Disk quota exceeded"))


class Wire:
    def __init__(self, socket):
        self._socket = socket
        self._lines = socket.makefile("rb")

    def receive(self):
        """The next request; None at the end, which is the order to stop."""
        line = self._lines.readline(line_bytes_max + 1)
        if not line.endswith(b"\n"):
            if len(line) > line_bytes_max:
                raise ValueError(f"A request has more than {line_bytes_max} bytes. Large things go by file.")
            return None
        request = json.loads(line)
        if not isinstance(request, dict) or not isinstance(request.get("id"), int) or not isinstance(request.get("op"), str):
            raise ValueError(f"A request needs a number as id and a text as op; got {line[:200]!r}.")
        return request

    def send(self, message):
        line = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if len(line) > line_bytes_max:
            raise ValueError(f"An answer of {len(line)} bytes is larger than {line_bytes_max}. Large things go by file.")
        self._socket.sendall(line)


def numbers(values):
    """JSON has no NaN and no infinity: they travel as text."""
    return {name: value if value - value == 0 else str(value) for name, value in values.items()}
