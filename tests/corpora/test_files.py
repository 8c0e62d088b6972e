"""Files: every fault names its place; nothing half-written is ever seen."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.corpora.download import download
from searchgym.corpora.files import dump_line, iter_jsonl, parse_line, read_json, sha256_file, write_atomic, write_jsonl
from searchgym.corpora.rows import sniff
from searchgym.errors import BadLines, DataError, DataMissingError, UsageError


def put(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(call) -> DataError:
    with pytest.raises(DataError) as caught:
        call()
    return caught.value


# -- JSON lines ----------------------------------------------------------------------------------------------------


def test_lines_end_at_newlines_only_and_numbers_count_blank_lines(tmp_path):
    content = '\ufeff{"a": "one\u2028two\u0085three\x1c"}\r\n\n  \n{"a": "four"}'
    path = put(tmp_path / "x.jsonl", content.replace("\x1c", "\\u001c"))
    assert list(iter_jsonl(path)) == [(1, {"a": "one\u2028two\u0085three\x1c"}), (4, {"a": "four"})]


def test_gzip_is_told_by_content_not_by_name(tmp_path):
    rows = [{"n": n} for n in range(5)]
    packed = gzip.compress(b"".join(map(dump_line, rows)))
    hidden = put(tmp_path / "x.jsonl", packed)
    plain = put(tmp_path / "x.jsonl.gz", gzip.decompress(packed))
    two_members = put(tmp_path / "y", gzip.compress(dump_line({"n": 0})) + gzip.compress(dump_line({"n": 1})))
    assert [row for _, row in iter_jsonl(hidden)] == rows
    assert [row for _, row in iter_jsonl(plain)] == rows
    assert [row for _, row in iter_jsonl(two_members)] == rows[:2]


def test_reading_is_streamed(tmp_path):
    path = put(tmp_path / "x.jsonl", b'{"n": 1}\n' * 3 + b"broken\n")
    rows = iter_jsonl(path)
    assert [next(rows)[0] for _ in range(3)] == [1, 2, 3]  # the broken line has not been looked at yet
    assert refused(lambda: next(rows)).line == 4


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "not JSON: Expecting ',' delimiter at column 8, got '{\"a\": 1'"),
        (b"hello", "not JSON: Expecting value at column 1, got 'hello'"),
        (b'{"a": "\xff"}', "not UTF-8: byte 0xff"),
        (b"[1, 2]", "expected a JSON object, got '[1, 2]'"),
        (b"null", "expected a JSON object, got 'null'"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not usable JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not usable JSON"),
    ],
    ids=["cut", "text", "latin-1", "list", "null", "endless number", "deep"],
)
def test_a_bad_line_names_file_line_and_reason(tmp_path, line, reason):
    path = put(tmp_path / "x.jsonl", b'{"ok": 1}\n\n' + line + b'\n{"ok": 2}\n')
    error = refused(lambda: list(iter_jsonl(path)))
    assert (error.path, error.line) == (path, 3)
    assert reason in error.reason
    assert str(error).startswith(f"{path}:3: ")


def test_skip_bad_tolerates_at_most_its_limit_and_reports(tmp_path):
    path = put(tmp_path / "x.jsonl", '{"n": 1}\nbad\n{"n": 2}\n[]\n{"n": 3}\n')
    two, one = BadLines(2), BadLines(1)
    assert [row["n"] for _, row in iter_jsonl(path, two)] == [1, 2, 3]
    assert [error.line for error in two.errors] == [2, 4]
    error = refused(lambda: list(iter_jsonl(path, one)))
    assert error.line == 4
    assert "bad line number 2, at most 1 may be left out" in error.reason
    assert [error.line for error in one.errors] == [2]


@pytest.mark.parametrize(
    "read", [read_json, lambda path: list(iter_jsonl(path)), sniff], ids=["json", "jsonl", "sniff"]
)
def test_missing_empty_folder_and_cut_gzip(tmp_path, read):
    with pytest.raises(DataMissingError, match=r"gone\.json: no such file: check the path"):
        read(tmp_path / "gone.json")
    assert "is a folder" in refused(lambda: read(tmp_path)).reason
    assert "the file is empty" in refused(lambda: read(put(tmp_path / "empty", b""))).reason
    packed = gzip.compress(b'{"a": "\xe9"}\n' + os.urandom(5000))
    for cut in (5, 15):
        assert "damaged gzip data" in refused(lambda cut=cut: read(put(tmp_path / "cut.gz", packed[:cut]))).reason


def test_cut_gzip_gives_the_whole_lines_before_the_cut(tmp_path):
    lines = b"".join(dump_line({"n": n, "noise": os.urandom(40).hex()}) for n in range(2000))
    path = put(tmp_path / "x.jsonl.gz", gzip.compress(lines)[:-1000])
    numbers = []
    error = refused(lambda: [numbers.append(number) for number, _ in iter_jsonl(path)])
    assert numbers == list(range(1, len(numbers) + 1))
    assert 1000 < len(numbers) < 2000
    assert error.line == len(numbers) + 1
    altered = bytearray(gzip.compress(lines))
    altered[-6] ^= 1  # the checksum
    assert "damaged gzip data" in refused(lambda: list(iter_jsonl(put(path, bytes(altered))))).reason


def test_blank_lines_alone_are_no_file(tmp_path):
    assert "blank lines only" in refused(lambda: list(iter_jsonl(put(tmp_path / "x", "\n \n")))).reason


# -- JSON documents ------------------------------------------------------------------------------------------------


def test_read_json(tmp_path):
    value = {"é": ["\u2028", 1.5, None]}
    text = "\ufeff" + json.dumps(value, ensure_ascii=False, indent=1)
    assert read_json(put(tmp_path / "x.json", text)) == value
    assert read_json(put(tmp_path / "x.json.gz", gzip.compress(text.encode()))) == value


def test_read_json_names_the_line(tmp_path):
    error = refused(lambda: read_json(put(tmp_path / "x.json", '{\n"a": 1,\n"b": oops\n}')))
    assert (error.line, error.reason) == (3, """not JSON: Expecting value at column 6, got '"b": oops'""")
    error = refused(lambda: read_json(put(tmp_path / "x.json", b'{\n"a": "\xff"}')))
    assert (error.line, error.reason) == (2, "not UTF-8: byte 0xff (invalid start byte); convert the file to UTF-8")
    assert "not JSON" in refused(lambda: read_json(put(tmp_path / "x.json", '{"a": 1}\n{"a": 2}'))).reason
    assert "not usable JSON" in refused(lambda: read_json(put(tmp_path / "x.json", "[" * 100_000))).reason


def test_read_json_refuses_a_repeated_key(tmp_path):
    error = refused(lambda: read_json(put(tmp_path / "x.json", '{"Page": ["one"], "Other": [], "Page": ["two"]}')))
    assert error.reason == "an object has the key 'Page' twice"
    assert error.path == tmp_path / "x.json"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ('{"id": "1", "contents": "a"}\n{"id": "2", "contents": "b"}\n', "jsonl"),
        ('{"id": "1", "contents": "a"}', "jsonl"),
        ('\ufeff\n{"id": "1"}\n', "jsonl"),
        ("junk\n" * 3 + '{"id": "1"}\n', "jsonl"),
        ('{"id": broken\n{"id": "2"}\n', "jsonl"),
        ('{"Page": ["one", "two"], "Other": ["three"]}', "json"),
        ('{\n  "Page": [\n    "one"\n  ]\n}', "json"),
        ('\n [{"title": "a"},\n{"title": "b"}\n]', "json"),
        ("{}", "jsonl"),
        (b"PAR1\x15\x04", "parquet"),
    ],
)
def test_sniff(tmp_path, content, kind):
    assert sniff(put(tmp_path / "x", content)) == kind


@pytest.mark.parametrize(
    "content", ["version https://git-lfs.github.com/spec/v1\n", "<!DOCTYPE html>", "\n", b"PK\x03"]
)
def test_sniff_says_what_it_found(tmp_path, content):
    error = refused(lambda: sniff(put(tmp_path / "x", content)))
    assert "neither JSON, JSON lines nor parquet: it begins with" in error.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": "b', "not JSON: Unterminated string starting at column 7"),
        ('{"a\tb": 1}', "not JSON: Invalid control character at column 4"),
        ("{'a': 1}", "not JSON: Expecting property name enclosed in double quotes at column 2"),
    ],
)
def test_the_place_of_broken_json_is_told_in_one_sentence(tmp_path, text, reason):
    for read in (lambda: parse_line(text.encode()), lambda: read_json(put(tmp_path / "x.json", text))):
        assert refused(read).reason.partition(", got ")[0] == reason


# -- writing -------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(), st.text(st.characters(codec=None)) | st.integers() | st.none() | st.booleans()))
def test_dump_line_reads_back_equal_and_is_one_line(value):
    line = dump_line(value)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert parse_line(line) == value


def test_dump_line_keeps_unicode_and_escapes_lone_surrogates():
    assert dump_line({"t": "é\u2028"}) == '{"t": "é\u2028"}\n'.encode()
    assert dump_line({"t": "é\ud800"}) == b'{"t": "\\u00e9\\ud800"}\n'


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_write_jsonl_takes_its_name_when_complete(tmp_path, name):
    path = tmp_path / "new" / "folder" / name

    def rows() -> Iterator[dict]:
        yield {"n": 1}
        assert [entry.suffix for entry in path.parent.iterdir()] == [".part"]
        yield {"n": 2}

    assert write_jsonl(path, rows()) == 2
    assert [entry.name for entry in path.parent.iterdir()] == [name]
    assert [row for _, row in iter_jsonl(path)] == [{"n": 1}, {"n": 2}]
    assert path.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_leaves_what_was_there(tmp_path, name, error):
    path = tmp_path / name
    write_jsonl(path, [{"n": 0}])
    before = path.read_bytes()

    def rows() -> Iterator[dict]:
        yield {"n": 1}
        raise error

    with pytest.raises(error):
        write_jsonl(path, rows())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_rows_give_the_same_bytes_packed_too(tmp_path):
    for name in ("a.gz", "b.gz"):
        write_jsonl(tmp_path / name, [{"n": n} for n in range(100)])
    packed = (tmp_path / "a.gz").read_bytes()
    assert packed == (tmp_path / "b.gz").read_bytes()
    assert packed[3:8] == bytes(5)  # RFC 1952: no flags (so no name) and no time


def test_a_file_replaces_no_folder_and_no_device(tmp_path):
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "folder", Path(os.devnull), put(tmp_path / "file", "x") / "below"):
        with pytest.raises(UsageError, match="cannot be written"), write_atomic(place) as file:
            file.write(b"x")
    assert not Path(os.devnull).is_file()


def test_sha256_file(tmp_path):
    path = put(tmp_path / "x", b"abc")
    assert sha256_file(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2
    with pytest.raises(DataMissingError, match="no such file"):
        sha256_file(tmp_path / "gone")
    assert "cannot be read" in refused(lambda: sha256_file(tmp_path)).reason


# -- downloads -----------------------------------------------------------------------------------------------------

CONTENT = bytes(range(256)) * 5000


def test_download_checks_and_reports(tmp_path):
    source, target = put(tmp_path / "source.gz", CONTENT), tmp_path / "target.gz"
    seen = []
    url = source.as_uri()
    download(url, target, hashlib.sha256(CONTENT).hexdigest().upper(), lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT  # as it came: not packed again
    assert seen == [(1 << 20, len(CONTENT)), (len(CONTENT), len(CONTENT))]
    target.unlink()
    error = refused(lambda: download(url, target, "0" * 64))
    assert hashlib.sha256(CONTENT).hexdigest() in error.reason
    assert "0" * 64 in error.reason
    assert list(tmp_path.iterdir()) == [source]


def test_download_of_what_is_not_there(tmp_path):
    with pytest.raises(DataMissingError, match="could not be downloaded"):
        download((tmp_path / "gone").as_uri(), tmp_path / "x")
    with pytest.raises(UsageError, match="expected an http, https or file address"):
        download("ftp://example.org/x", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


class Server(http.server.BaseHTTPRequestHandler):
    """Serves ``/whole``, ``/cut`` (promises more than it sends) and nothing else."""

    def do_GET(self):
        if self.path not in ("/whole", "/cut"):
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT if self.path == "/whole" else CONTENT[:-7])
        return None

    def log_message(self, *args):
        pass


@pytest.fixture
def address(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_download_over_http(tmp_path, address):
    download(f"{address}/whole", tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == CONTENT
    error = refused(lambda: download(f"{address}/cut", tmp_path / "cut"))
    assert f"ended after {len(CONTENT) - 7} of {len(CONTENT)} bytes" in error.reason
    with pytest.raises(DataMissingError, match="404"):
        download(f"{address}/other", tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
