"""PDF and DOCX documents: their text, and what hostile ones may take."""

from __future__ import annotations

import io
import re
import time
import zipfile
import zlib
from pathlib import Path

import pytest

from searchgym.corpora.documents import convert_documents
from searchgym.corpora.readers import office
from searchgym.errors import BadLines, DataWarning


def pdf(stream: bytes, extra: str = "", title: str = "", pages: int = 1) -> bytes:
    """Returns a PDF document whose pages show a stream of drawing operators."""
    kids = " ".join(f"{10 + n} 0 R" for n in range(pages))
    objects = {
        1: "<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>",
        3: "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        5: f"<< /Title ({title}) >>",
    }
    page = "<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /F1 3 0 R >> >> >>"
    objects |= {10 + number: page for number in range(pages)}
    body, places = b"%PDF-1.7\n", {}
    objects[4] = f"<< /Length {len(stream)} {extra} >>\nstream\n{stream.decode('latin-1')}\nendstream"
    for number, text in objects.items():
        places[number] = len(body)
        body += f"{number} 0 obj\n{text}\nendobj\n".encode("latin-1")
    table = "".join(f"{number} 1\n{place:010} 00000 n \n" for number, place in places.items())
    trailer = f"trailer << /Root 1 0 R /Info 5 0 R /Size {max(places) + 1} >>\nstartxref\n{len(body)}\n%%EOF\n"
    return body + f"xref\n0 1\n0000000000 65535 f \n{table}{trailer}".encode()


def shown(text: str) -> bytes:
    return f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode()


def docx(body: str, title: str = "", claimed: int | None = None, **more: bytes) -> bytes:
    """Returns a DOCX document with a body, and further files, of which the last claims a size."""
    types = "http://schemas.openxmlformats.org/package/2006/content-types"
    of = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    core = "http://schemas.openxmlformats.org/package/2006/relationships/metadata/core-properties"
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    props = "application/vnd.openxmlformats-package.core-properties+xml"
    words = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    files = {
        "[Content_Types].xml": f'<Types xmlns="{types}"><Default Extension="xml" ContentType="application/xml"/>'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{main}"/>'
        f'<Override PartName="/core.xml" ContentType="{props}"/></Types>',
        "_rels/.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        f'<Relationship Id="a" Type="{of}" Target="word/document.xml"/>'
        f'<Relationship Id="b" Type="{core}" Target="core.xml"/></Relationships>',
        "core.xml": '<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties"'
        f' xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></cp:coreProperties>',
        "word/document.xml": body
        if body.startswith("<!")
        else f'<w:document xmlns:w="{words}"><w:body>{body}</w:body></w:document>',
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (files | more).items():
            archive.writestr(name, content)
        if claimed is not None:
            archive.infolist()[-1].file_size = claimed
    return made.getvalue()


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def cell(text: str, width: int = 1) -> str:
    return f'<w:tc><w:tcPr><w:gridSpan w:val="{width}"/></w:tcPr>{paragraph(text)}</w:tc>'


def table(*rows: str) -> str:
    return f"<w:tbl><w:tblPr/><w:tblGrid/>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"


def test_pdf_and_docx_are_read(tmp_path: Path) -> None:
    stream = zlib.compress(shown("The valve is B-17."))
    (tmp_path / "a.PDF").write_bytes(pdf(stream, "/Filter /FlateDecode", title="Pump 17", pages=2))
    body = (
        paragraph("One.")
        + table(cell("Pump") + cell("B-17", 3), cell("") + cell("x"))
        + paragraph("")
        + paragraph("Two.")
    )
    (tmp_path / "c.docx").write_bytes(docx(body))
    assert [(p.id, p.title, p.text) for p in convert_documents(tmp_path)] == [
        ("a.PDF", "Pump 17", "The valve is B-17.\n\nThe valve is B-17."),
        ("c.docx", "c", "One.\n\nPump; B-17\n\nx\n\nTwo."),
    ]


def test_without_the_extra_they_are_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "PACKAGES", {".pdf": "no_such_package", ".docx": "nor_this"})
    for name in ("a.pdf", "b.docx", "c.docx", "d.csv"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "e.md").write_text("fine")
    said = r"left out: 1 \.csv, 2 \.docx, 1 \.pdf \(`pip install 'searchgym\[documents\]'` reads PDF and DOCX\)"
    with pytest.warns(DataWarning, match=said):
        assert [passage.id for passage in convert_documents(tmp_path)] == ["e.md"]


def test_a_page_without_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "scan.pdf").write_bytes(pdf(b""))
    with pytest.warns(DataWarning, match=r"scan\.pdf: has no text \(scanned pages have none\)"):
        assert [passage.text for passage in convert_documents(tmp_path)] == [""]


LAUGHS = '<!DOCTYPE d [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 50}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
WORDS = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
HOSTILE = {
    "zip bomb": (
        lambda: docx(paragraph("x"), **{"x.bin": b""}, claimed=300 << 20),
        r"unpacks to 5 files of 314,\d+,\d+ bytes",
    ),
    "real zip bomb": (lambda: docx(paragraph("x"), **{"x.bin": bytes(300 << 20)}), r"unpacks to 5 files of 314,"),
    "many files": (lambda: docx(paragraph("x"), **{f"f{n}": b"" for n in range(10_001)}), "unpacks to 10,005 files"),
    "entities": (
        lambda: docx(f"{LAUGHS}]><w:document {WORDS}><w:body>{paragraph('&i;')}</w:body></w:document>"),
        "XMLSyntaxError: Maximum entity amplification",
    ),
    "deep": (lambda: docx("<w:p>" * 5000 + "</w:p>" * 5000), "XMLSyntaxError: Excessive depth"),
    "wide": (lambda: docx(table(cell("x", 2_000_000_000))), "needs more than 300 MiB of memory"),
    "long": (lambda: docx("".join(map(paragraph, ["a" * 10_000] * 2000))), "more than 16,777,216 characters of text"),
    "circle": (lambda: pdf(shown("x")).replace(b"[10 0 R]", b"[2 0 R ]"), "cyclic page references"),
    "stream": (lambda: pdf(zlib.compress(b"q " * (60 << 20)), "/Filter /FlateDecode"), "LimitReachedError"),
    "slow": (
        lambda: pdf(zlib.compress(b"BT /F1 9 Tf " + b"(a) Tj " * (8 << 20)), "/Filter /FlateDecode"),
        "took more than 1 seconds to read",
    ),
    "nested": (lambda: pdf(shown("x"), title=f") /X {'[' * 50_000} ("), "RecursionError|cannot be read"),
    "cut": (lambda: pdf(shown("x"))[:200], "PdfStreamError"),
    "no zip": (lambda: b"PK\3\4 nothing", "BadZipFile"),
}


QUICK = ("zip bomb", "entities", "slow", "nested")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in HOSTILE])
def test_a_hostile_document_is_one_error_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make, message = HOSTILE[name]
    monkeypatch.setattr(office, "CHILD_SECONDS", 1 if name == "slow" else 60)
    monkeypatch.setattr(office, "MEMORY", 300 << 20)
    content = make()
    path = tmp_path / ("a.pdf" if content.startswith(b"%PDF") else "a.docx")
    path.write_bytes(content)
    (tmp_path / "b.md").write_text("fine")
    bad = BadLines(1)
    began = time.perf_counter()
    assert [passage.text for passage in convert_documents(tmp_path, bad)] == ["fine"]
    assert time.perf_counter() - began < 30
    (error,) = bad.errors
    assert error.path == path
    assert re.search(message, error.reason)
