"""An S3 server on 127.0.0.1 that serves a folder as a bucket, with the requests that readers of scores need."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        address = urlsplit(self.path)
        bucket, _, key = unquote(address.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        if bucket != "bucket":
            self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        elif not key:
            self._answer(200, self._list(query).encode())
        elif (path := self.folder / key).is_file():
            self._send(path.read_bytes())
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _list(self, query: dict[str, str]) -> str:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        contents, folders = "", set()
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            key = path.relative_to(self.folder).as_posix()
            if not key.startswith(prefix):
                continue
            if delimiter and delimiter in key[len(prefix) :]:
                folders.add(prefix + key[len(prefix) :].split(delimiter)[0] + delimiter)
                continue
            contents += (
                f"<Contents><Key>{escape(key)}</Key><Size>{path.stat().st_size}</Size>"
                "<LastModified>2026-11-22T00:00:00.000Z</LastModified></Contents>"
            )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)
        )
        head = f"<Name>bucket</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        return f'<ListBucketResult xmlns="{space}">{head}{contents}{common}</ListBucketResult>'

    def _send(self, content: bytes) -> None:
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if not asked:
            return self._answer(200, content)
        first, _, last = asked.partition("-")
        start, end = int(first), min(int(last or len(content)) + 1, len(content))
        self._answer(206, content[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        common = {
            "Content-Length": str(len(body)),
            "ETag": f'"{md5(body, usedforsecurity=False).hexdigest()}"',
            "Last-Modified": formatdate(0, usegmt=True),
        }
        for name, value in (common | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Suppresses the log."""


@contextmanager
def serve(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Address of a server whose `bucket` is the folder, and its requests: a line `METHOD path` each."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"folder": folder, "asked": asked}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
