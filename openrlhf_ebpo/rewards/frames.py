"""Messages between a rollout actor and its reward processes: length and number of the call, then that many bytes."""

from __future__ import annotations

import struct

HEADER = struct.Struct("!IQ")
PING = 0  # the number of no call
LONGEST_REPLY = 1 << 20  # bytes; a reward is a few numbers
OUT_OF_MEMORY = 77  # exit code of a process in which a call met the end of its memory


def frame(number: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), number) + payload
