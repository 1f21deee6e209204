"""The compiler process: reads kernels on stdin, writes object files on stdout.

Native code that aborts (LLVM does, on what it doesn't know) ends this process and nothing else. A request is
a pickled (schedule, problem, target, symbol), an answer a pickled (ok, object file or message); both come
from and go to the parent's own pipe, never from a file. Frames are 8 bytes of length and the data. The
process ends with its parent (end of file) or after a minute without work.
"""

from __future__ import annotations

import os
import pickle
import select
import sys
from typing import IO

_IDLE_SECONDS = 60.0


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame, None at the end of the stream."""
    header = stream.read(8)
    if len(header) < 8:
        return None
    data = stream.read(int.from_bytes(header, "little"))
    return data


def write_frame(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def main() -> None:
    # Libraries print: what goes to file descriptor 1 must not end up between the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = os.fdopen(0, "rb", buffering=0)
    # TVM's function interface imports torch where it is installed: 4 s and 200 MB for nothing here.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from convopt.codegen.device import kernel_code

    while select.select([requests], [], [], _IDLE_SECONDS)[0]:
        frame = read_frame(requests)
        if frame is None:
            return
        schedule, problem, target, symbol = pickle.loads(frame)
        answer: tuple[bool, bytes | str]
        try:
            answer = True, kernel_code(schedule, problem, target, symbol)
        except Exception as error:  # whatever it is, the parent is told and the next kernel is compiled
            answer = False, f"{type(error).__name__}: {error}"
        write_frame(answers, pickle.dumps(answer))


if __name__ == "__main__":
    main()
