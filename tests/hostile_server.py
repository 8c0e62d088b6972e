"""A server on loopback that sends what a test says, byte by byte or without end."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time

LIFE = 4.0
"""Seconds after which a server gives an attack up, so that a client without a deadline fails instead of hanging."""
PAUSE = 0.02
"""Seconds between the pieces of a slow reply."""
MOST = 48 * 2**20
"""Bytes after which a server gives up a fast reply."""
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SLOW = {
    "body": (HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
    "head": (HEAD + b"X: ", b"a"),
    "many headers": (HEAD, b"X: a\r\n"),
    "chunk extension": (CHUNKED + b"5;", b"x"),
    "size of a chunk": (CHUNKED, b"0"),
    "small chunks": (CHUNKED, b"1\r\n \r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"X: a\r\n"),
    "status": (b"HTTP/1.1 ", b"2"),
    "replies before the reply": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body without a length": (HEAD + b"\r\n", b" "),
    "silence": (b"", b""),
}
"""Start of a reply and the piece that follows again and again, slowly."""
BLOCK = b" " * 2**16
FAST = {
    "body": (HEAD + b"Content-Length: 1000000000000\r\n\r\n", BLOCK),
    "chunks": (CHUNKED, b"10000\r\n" + BLOCK + b"\r\n"),
    "body without a length": (HEAD + b"\r\n", BLOCK),
    "head": (HEAD + b"X: ", BLOCK),
    "many headers": (HEAD, b"X: " + b"a" * 60_000 + b"\r\n"),
    "chunk extension": (CHUNKED + b"5;", BLOCK),
    "chunk of length -1": (CHUNKED + b"-1\r\n", BLOCK),
    "chunk of length -5": (CHUNKED + b"-5\r\n", BLOCK),
    "huge chunk": (CHUNKED + b"f" * 60_000 + b"\r\n", BLOCK),
    "trailers": (CHUNKED + b"0\r\n", b"X: " + b"a" * 60_000 + b"\r\n"),
    "two lengths": (HEAD + b"Content-Length: -1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", BLOCK),
}
"""The same, as fast as the client takes it."""


class Hostile:
    """Answers every request with the next of some replies, the last one again and again.

    Args:
        *replies: Replies: bytes, or a start and the piece that follows again and again.
        pause: Seconds between pieces.
        reads: Whether to read requests.
    """

    def __init__(self, *replies, pause=0.0, reads=True):
        self.replies, self.pause, self.reads = list(replies), pause, reads
        self.sent, self.heads, self.stop, self.open = 0, [], threading.Event(), []

    def serve(self, listener):
        threads = []
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                break
            self.open.append(connection)
            threads.append(threading.Thread(target=self.answer, args=(connection,), name="hostile"))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def answer(self, connection):
        with connection, contextlib.suppress(OSError):
            connection.settimeout(LIFE)
            while not self.reads or self.read(connection):
                reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                start, piece = (reply, None) if isinstance(reply, bytes) else reply
                connection.sendall(start)
                if piece is None and not self.reads:
                    self.stop.wait(LIFE)
                    return
                if piece is not None:
                    self.repeat(connection, piece)
                    return

    def read(self, connection):
        """Reads one request; returns whether there was one."""
        got = b""
        while b"\r\n\r\n" not in got:
            if not (more := connection.recv(65536)):
                return False
            got += more
        head, _, body = got.partition(b"\r\n\r\n")
        self.heads.append(head.decode("latin-1"))
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        while len(body) < int(lengths[0] if lengths else 0):
            if not (more := connection.recv(65536)):
                return False
            body += more
        return True

    def repeat(self, connection, piece):
        end = time.monotonic() + LIFE
        for _ in itertools.count():
            if self.stop.wait(self.pause) or time.monotonic() > end or self.sent > MOST:
                return
            connection.sendall(piece)
            self.sent += len(piece)


@contextlib.contextmanager
def hostile(*replies, **how):
    """Runs a hostile server; yields it, with its address as `url`."""
    server = Hostile(*replies, **how)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]
        server.url = f"http://127.0.0.1:{server.port}"
        thread = threading.Thread(target=server.serve, args=(listener,), name="hostile")
        thread.start()
        try:
            yield server
        finally:
            server.stop.set()
            listener.shutdown(socket.SHUT_RDWR)
            for connection in server.open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join()


def good(body=b'{"ok": 1}', *headers):
    """Returns a whole reply, after which the connection stays open."""
    return b"".join([HEAD, *(h + b"\r\n" for h in headers), b"Content-Length: %d\r\n\r\n" % len(body), body])
