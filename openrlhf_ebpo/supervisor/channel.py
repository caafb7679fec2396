"""Lines of JSON between the driver and its supervisor: the driver asks, the supervisor answers."""

from __future__ import annotations

import json
import socket

ANSWER_SECONDS = 180.0  # a claim may watch a foreign lock, and end what an earlier training has left


class Channel:
    """One end of a socket pair. The other end's death is an EOFError, its silence a TimeoutError."""

    def __init__(self, end: socket.socket):
        self.end = end
        self._unread = b""

    def fileno(self) -> int:
        return self.end.fileno()

    def ask(self, question: dict) -> dict:
        self.send(question)
        return self.receive()

    def send(self, message: dict) -> None:
        try:
            self.end.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError from error

    def receive(self, seconds: float = ANSWER_SECONDS) -> dict:
        self.end.settimeout(seconds)
        while b"\n" not in self._unread:
            try:
                more = self.end.recv(1 << 16)
            except ConnectionResetError as error:
                raise EOFError from error
            if not more:
                raise EOFError
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)
