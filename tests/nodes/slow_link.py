"""A TCP proxy that delays what it carries, freezes (as a cut cable does: nothing comes, nothing is closed), or cuts."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time


class SlowLink:
    """Carries to a port of this machine. `delay_s`: one way. While `frozen` nothing passes, new connections neither."""

    def __init__(self, port: int, delay_s: float = 0.0) -> None:
        self.to, self.delay_s, self.frozen = port, delay_s, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close every connection."""
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.frozen = False
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                while self.frozen:
                    time.sleep(0.05)
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                self._carry(source, sink)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        held: queue.Queue[tuple[float, bytes]] = queue.Queue()

        def read() -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    held.put((time.monotonic() + self.delay_s, data))
            held.put((time.monotonic() + self.delay_s, b""))

        def write() -> None:
            with contextlib.suppress(OSError):
                while True:
                    due_s, data = held.get()
                    while self.frozen or time.monotonic() < due_s:
                        time.sleep(min(0.05, max(0.001, due_s - time.monotonic())))
                    if not data:
                        sink.shutdown(socket.SHUT_WR)
                        return
                    sink.sendall(data)

        threading.Thread(target=read, daemon=True).start()
        threading.Thread(target=write, daemon=True).start()
