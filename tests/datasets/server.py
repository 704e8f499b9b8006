"""A file server on localhost with the faults that a test chooses."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Handle = Callable[["Handler", "Served"], None]


@dataclass
class Served:
    """The content, the requests so far, and the faults that requests meet in place of the file."""

    content: bytes = b""
    etag: str | None = '"first"'
    modified: str | None = None
    kind: str = "application/zip"
    # One for each of the next requests; after them, the file is served properly.
    faults: list[Handle] = field(default_factory=list)
    always: Handle | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    paths: dict[str, bytes] = field(default_factory=dict)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    served: Served

    def do_GET(self) -> None:
        served = self.served
        served.asked.append({"path": self.path} | dict(self.headers))
        if self.path in served.paths:
            self.answer(served.paths[self.path])
        elif served.always is not None:
            served.always(self, served)
        elif served.faults:
            served.faults.pop(0)(self, served)
        else:
            serve(self, served)

    def answer(
        self,
        body: bytes,
        status: int = 200,
        length: int | None = None,
        **headers: str | None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def named(served: Served) -> dict[str, str | None]:
    return {"ETag": served.etag, "Last_Modified": served.modified, "Content_Type": served.kind}


def serve(handler: Handler, served: Served, sent: int | None = None) -> None:
    """Serve the file, or the rest of it that ``Range`` asks for; ``sent`` bytes of that at most."""
    wanted = handler.headers.get("Range")
    validator = handler.headers.get("If-Range")
    if wanted is None or (validator and validator not in (served.etag, served.modified)):
        body = served.content
        handler.answer(body[:sent], 200, len(body), **named(served))
        return
    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
    body, last = served.content[start:], len(served.content) - 1
    if not body:
        handler.answer(b"", 416, Content_Range=f"bytes */{len(served.content)}")
        return
    span = f"bytes {start}-{last}/{len(served.content)}"
    handler.answer(body[:sent], 206, len(body), Content_Range=span, **named(served))


def drop(sent: int) -> Handle:
    """Promise everything, send this many bytes, and hang up."""
    return lambda handler, served: serve(handler, served, sent)


def without_ranges(sent: int | None = None) -> Handle:
    """Serve the file from its beginning, whatever is asked for."""

    def handle(handler: Handler, served: Served) -> None:
        handler.answer(served.content[:sent], 200, len(served.content), **named(served))

    return handle


def status(code: int, body: bytes = b"") -> Handle:
    return lambda handler, served: handler.answer(body, code)


def redirect(target: str) -> Handle:
    return lambda handler, served: handler.answer(b"", 302, Location=target)


def chunked(sent: int, whole: bool = True) -> Handle:
    """Send without a length, in chunks; without the last one if it is not to be whole."""

    def handle(handler: Handler, served: Served) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("ETag", served.etag or "")
        handler.end_headers()
        body = served.content[:sent]
        handler.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
        if whole:
            handler.wfile.write(b"0\r\n\r\n")
        handler.close_connection = True

    return handle


def slowly(seconds: float) -> Handle:
    """Send half, wait, and send the rest."""

    def handle(handler: Handler, served: Served) -> None:
        half = len(served.content) // 2
        handler.answer(served.content[:half], 200, len(served.content), **named(served))
        time.sleep(seconds)
        handler.wfile.write(served.content[half:])

    return handle


@contextmanager
def serving(content: bytes = b"", **more: object) -> Iterator[Served]:
    served = Served(content, **more)  # type: ignore[arg-type]
    handler = type("Serving", (Handler,), {"served": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    served.url = f"http://127.0.0.1:{server.server_port}/file.zip"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
