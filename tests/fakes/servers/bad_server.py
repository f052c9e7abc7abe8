"""A small real server with misbehaviour switches. Standard library only; run as `python bad_server.py SWITCH…`."""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time


def main() -> None:
    args = parsed()
    ignore(args.ignore)
    say(f"pid {os.getpid()} starting")
    if args.dump:
        dump(args.dump)
    if args.exit_at_once:
        return
    if args.grandchild is not None:
        grandchild(args.grandchild, args.ignore)
    if args.wiped_child:
        wiped_child()
    if args.zombie:
        zombie()
    if args.flood_bytes:
        flood(args.flood_bytes)
    if args.print_secret:
        print_in_pieces(os.environ[args.print_secret], args.pieces)
    if args.log:
        replay(args.log, args.line_delay_s)
    if args.crash_after_s is not None:
        crash_later(args.crash_after_s, args.exit_code, args.die_by)
    if args.port is None or args.hang:
        return forever()
    serve(args.port, args.ready_after_s)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, help="serve /health and /generate here; absent: run without serving")
    parser.add_argument("--ready-after-s", type=float, default=0.0)
    parser.add_argument("--ignore", default="", help="signals to ignore, as INT,TERM,HUP")
    parser.add_argument(
        "--grandchild", type=int, help="leave a child in a session of its own that listens on this port"
    )
    parser.add_argument("--wiped-child", action="store_true", help="leave a child that shows no environment")
    parser.add_argument("--zombie", action="store_true", help="leave a child that has ended and is not waited for")
    parser.add_argument("--flood-bytes", type=int, default=0, help="print that many bytes at once")
    parser.add_argument("--hang", action="store_true", help="never serve, never say anything more")
    parser.add_argument("--crash-after-s", type=float)
    parser.add_argument("--exit-code", type=int, default=1)
    parser.add_argument("--die-by", default="", help="die by this signal instead of an exit code, as SEGV")
    parser.add_argument("--log", help="print this file line by line")
    parser.add_argument("--line-delay-s", type=float, default=0.0)
    parser.add_argument("--print-secret", help="print the value of this variable, in --pieces writes")
    parser.add_argument("--pieces", type=int, default=1)
    parser.add_argument("--dump", help="write argv, environment and process ids as JSON into this file")
    parser.add_argument("--exit-at-once", action="store_true")
    return parser.parse_args(sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else None)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def ignore(names: str) -> None:
    for name in filter(None, names.split(",")):
        signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_IGN)


def dump(path: str) -> None:
    """Everything after the first `--` is `rest`; bytes as hex."""
    rest = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    state = {
        "rest": [os.fsencode(word).hex() for word in rest],
        "environ": {os.fsencode(key).hex(): os.fsencode(value).hex() for key, value in os.environ.items()},
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "cwd": os.getcwd(),
    }
    with open(path + ".new", "w") as file:
        json.dump(state, file)
    os.replace(path + ".new", path)


def grandchild(port: int, ignored: str) -> None:
    """In a session of its own, orphaned at once, so that neither group nor descent leads to it."""
    words = [sys.executable, __file__, "--port", str(port), "--ignore", ignored]
    code = f"import subprocess; subprocess.Popen({words!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], check=True)


def wiped_child() -> None:
    """As setproctitle leaves SGLang's schedulers."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], env={})
    say(f"child {child.pid} started")


def zombie() -> None:
    if os.fork() == 0:
        os._exit(0)


def flood(size_bytes: int) -> None:
    line = b"Decode batch, #running-req: 256, gen throughput (token/s): 4242.00\n" * 1000
    written = 0
    while written < size_bytes:
        written += os.write(1, line)
    say("flood over")


def print_in_pieces(text: str, pieces: int) -> None:
    data = b"api_key=" + os.fsencode(text) + b" end\n"
    size = max(1, len(data) // pieces)
    for start in range(0, len(data), size):
        os.write(1, data[start : start + size])
        time.sleep(0.02)


def replay(path: str, delay_s: float) -> None:
    with open(path, "rb") as file:
        for line in file:
            os.write(2, line)
            time.sleep(delay_s)


def crash_later(after_s: float, code: int, signal_name: str) -> None:
    def crash() -> None:
        time.sleep(after_s)
        say("crashing")
        if signal_name:
            os.kill(os.getpid(), signal.Signals[f"SIG{signal_name}"])
            time.sleep(60)  # the signal may take a moment
        os._exit(code)

    threading.Thread(target=crash, daemon=True).start()


def forever() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        say("running")
        while True:
            time.sleep(3600)


class Answer(http.server.BaseHTTPRequestHandler):
    ready_s = 0.0

    def do_GET(self) -> None:
        self.send_response(200 if time.monotonic() >= self.ready_s else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        say(format % args)


def serve(port: int, ready_after_s: float) -> None:
    Answer.ready_s = time.monotonic() + ready_after_s
    http.server.ThreadingHTTPServer.address_family = socket.AF_INET
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
    say(f"serving on {port}")
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
