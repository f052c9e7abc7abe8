"""A tunnel: a port of this machine's loopback whose connections end at a port of the node's loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

import paramiko

from servetune.core.errors import NodeError
from servetune.nodes._ssh_link import Link

_RECV_BYTES = 1 << 16


class Tunnel:
    """While entered, forwards; entering gives the base URL. Two threads for each connection."""

    def __init__(self, link: Link, port: int) -> None:
        self._link = link
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._open: set[socket.socket | paramiko.Channel] = set()
        self._closed = False

    def __enter__(self) -> str:
        threading.Thread(target=self._accept, name="tunnel", daemon=True).start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            _close(end)

    def _accept(self) -> None:
        while not self._closed:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(taken,), name="tunnel", daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        try:
            far = self._link.forward(self._port)
        except (NodeError, paramiko.SSHException, OSError, EOFError):
            _close(near)  # nobody listens there: the client sees its connection closed
            return
        self._open |= {near, far}
        back = threading.Thread(target=_pump, args=(far, near), name="tunnel", daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        for end in (near, far):
            _close(end)
            self._open.discard(end)


def _pump(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):
        while chunk := source.recv(_RECV_BYTES):
            sink.sendall(chunk)
    with contextlib.suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR) if isinstance(sink, socket.socket) else sink.shutdown_write()


def _close(end: socket.socket | paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):
        if isinstance(end, socket.socket):
            end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError, EOFError):
        end.close()
