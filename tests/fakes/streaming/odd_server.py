"""A server with odd manners: of HTTP, of event streams, or of something that is no model server at all.

Program: `python odd_server.py [--host 127.0.0.1] [--tls CERT KEY]`; prints `port N`. The first part of a path chooses
the manner: `POST /comments/generate` is answered as SGLang does, but with comments between the events. `/generate`
streams cumulative text, `/v1/completions` and `/v1/chat/completions` deltas; of the manners below, those of `RIGHT` are
right answers, the others are not. Under `/secret/` only requests with `Authorization: Bearer open-sesame` are answered.
"""

import argparse
import asyncio
import json
import ssl
import sys

EVENT_S = 0.002
RIGHT = ("plain", "comments", "fields", "no-done", "one-event", "http10", "close", "length", "late-usage", "spaced")
WRONG = (
    *(
        "429",
        "redirect",
        "html",
        "404",
        "silent",
        "greeting",
        "json",
        "empty",
        "not-utf8",
        "json-error",
        "hangup",
        "500",
    ),
    *("cut-done", "untold", "half-head", "endless-head"),
)


def event(data: object, spaces: bool = False) -> bytes:
    return b"data: " + json.dumps(data, separators=None if spaces else (",", ":")).encode() + b"\n\n"


def events(path: str, asked: int, manner: str) -> list[bytes]:
    """All events of an answer of `asked` tokens, without the closing [DONE]."""
    spaced = manner == "spaced"
    step = asked if manner in ("one-event", "untold") else 1
    counts = range(step, asked + 1, step)
    if path.endswith("/generate"):
        return [
            event(
                {
                    "text": " tide" * count,
                    "meta_info": {
                        "finish_reason": {"type": "length", "length": asked} if count == asked else None,
                        "prompt_tokens": 16,
                        "completion_tokens": count,
                        "cached_tokens": 0,
                    },
                },
                spaced,
            )
            for count in counts
        ]
    chat = path.endswith("/chat/completions")
    found = [event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}, spaced)] if chat else []
    for count in counts:
        text = " tide" * step
        inner = {"delta": {"content": text}} if chat else {"text": text}
        choice = {"index": 0, **inner, "finish_reason": "length" if count == asked else None}
        found.append(event({"choices": [choice], "usage": None}, spaced))
    usage = {"prompt_tokens": 16, "completion_tokens": asked, "total_tokens": 16 + asked}
    if manner != "untold":
        found.append(event({"choices": [], "usage": usage}, spaced))
    return found


def dressed(piece: bytes, manner: str) -> bytes:
    if manner == "comments":
        return b": keep-alive\n\n" + piece + b": still here\n\n:\n\n"
    if manner == "fields":  # SSE allows them, and lines that end in CR LF
        return (b"event: message\nid: 7\nretry: 100\n" + piece).replace(b"\n", b"\r\n")
    return piece


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def run(self) -> None:
        try:
            while await self.serve_one():
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writer.close()

    def whole(self, status: str, body: bytes, more: str = "", kind: str = "application/json") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        self.writer.write(head.encode() + body)

    async def serve_one(self) -> bool:
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        _, manner, path = lines[0].split(" ")[1].split("/", 2)
        path = f"/{path}"
        if manner == "secret" and headers.get("authorization") != "bearer open-sesame":
            self.whole("401 Unauthorized", b'{"error":"no key"}')
            return True
        if manner in ("404", "html", "silent", "greeting", "redirect", "hangup"):
            return await self.other(manner)
        if not path.endswith(("/generate", "/completions")):
            self.whole("404 Not Found", b"")
            return True
        return await self.generate(manner, path, json.loads(body))

    async def other(self, manner: str) -> bool:
        """Not a model server."""
        if manner == "404":
            self.whole("404 Not Found", b'{"detail":"Not Found"}')
        elif manner == "html":
            self.whole("200 OK", b"<html><body>It works!</body></html>", kind="text/html")
        elif manner == "silent":
            await asyncio.sleep(3600)
        elif manner == "greeting":
            self.writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
            return False
        elif manner == "redirect":
            self.whole("307 Temporary Redirect", b"", "Location: http://127.0.0.1:9/elsewhere\r\n")
        return manner != "hangup"

    async def generate(self, manner: str, path: str, asked: dict) -> bool:
        errors = {
            "429": ("429 Too Many Requests", b'{"error":"slow down"}', "Retry-After: 7\r\n"),
            "500": ("500 Internal Server Error", b'{"error":"CUDA error"}', ""),
            "json-error": ("200 OK", b'{"error":{"message":"no such model"}}', ""),
            "json": ("200 OK", b'{"text":" tide","meta_info":{"completion_tokens":1}}', ""),
        }
        if manner in errors:
            self.whole(*errors[manner])
            return True
        tokens = asked["sampling_params"]["max_new_tokens"] if "sampling_params" in asked else asked["max_tokens"]
        pieces = [dressed(piece, manner) for piece in events(path, tokens, manner)]
        if manner == "not-utf8":
            pieces[2] = b"data: \xff\xfe\x00{{{\n\n"
        done = [] if manner in ("no-done", "empty") else [dressed(b"data: [DONE]\n\n", manner)]
        if manner == "cut-done":
            pieces = pieces[: len(pieces) // 2]
        return await self.stream(manner, [] if manner == "empty" else [*pieces, *done])

    async def stream(self, manner: str, pieces: list[bytes]) -> bool:
        version = "1.0" if manner == "http10" else "1.1"
        framing = {
            "http10": "",
            "close": "Connection: close\r\n",
            "length": f"Content-Length: {sum(map(len, pieces))}\r\n",
        }
        chunked = manner not in framing
        head = f"HTTP/{version} 200 OK\r\nContent-Type: text/event-stream\r\n"
        head += framing.get(manner, "Transfer-Encoding: chunked\r\n")
        if manner == "half-head":
            self.writer.write(head.encode())
            return False
        if manner == "endless-head":
            for number in range(3000):
                head += f"X-Header-{number}: {'x' * 40}\r\n"
        self.writer.write(head.encode() + b"\r\n")
        for piece in pieces:
            self.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await self.writer.drain()
            await asyncio.sleep(EVENT_S)
        if chunked:
            self.writer.write(b"0\r\n\r\n")
        return manner not in ("http10", "close")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--tls", nargs=2)
    options = parser.parse_args()
    context = None
    if options.tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*options.tls)
    server = await asyncio.start_server(lambda r, w: Peer(r, w).run(), options.host, 0, ssl=context)
    print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
