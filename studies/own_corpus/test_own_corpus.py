"""Documents of linked pages."""

import json

import pytest
from test_benchmarks import here

pytestmark = pytest.mark.study


def test_documents_of_linked_pages(practised):
    given = ["--corpus", str(practised / "corpus.jsonl"), "--pages", "4"]
    given += ["--questions", str(practised / "practice" / "questions.jsonl"), "--out", str(practised / "documents")]
    found = here("studies/own_corpus/own_corpus.py", *given, "--json")
    assert found.returncode == 0, found.stderr
    texts = [path.read_text() for path in sorted((practised / "documents").glob("*.md"))]
    assert json.loads(found.stdout)["documents"] == len(texts) and 2 <= len(texts) <= 4
    assert all(text.startswith("---\ntitle: ") for text in texts)
