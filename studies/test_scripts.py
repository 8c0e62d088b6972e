"""Scripts of studies print a table, or exactly one JSON object with --json; progress goes to stderr."""

import json

import pytest
from test_benchmarks import ROOT, here, script

pytestmark = pytest.mark.study
SMALL = {  # arguments, and rows at least
    "real_questions/real_questions.py": (
        [
            *("--base", "tiny", "--warm", "tiny", "--limit", "3", "--dtype", "float32"),
            *("--questions", "searchgym/demo/questions.json", "--corpus", "searchgym/demo/corpus.jsonl"),
        ],
        13,
    ),
    "cosearch/cosearch.py": (
        ["compare", "World", "--reasoner", "tiny-teams", "--ranker", "untrained=tiny-teams", "--questions", "3"],
        3,
    ),
    "long_horizon/long_horizon.py": (["--turns", "6"], 2),
}


@pytest.mark.parametrize("name", SMALL)
def test_scripts_print_one_object(name):
    arguments, rows = SMALL[name]
    found = here(f"studies/{name}", *arguments, "--json")
    assert found.returncode == 0, found.stderr
    assert len(json.loads(found.stdout)["results"]) >= rows
    assert "..." in found.stderr


def test_every_script_has_json_and_starts():
    """Also those whose imports come from a neighbour's folder."""
    for path in sorted((ROOT / "studies").glob("*/*.py")):
        if "__main__" in (text := path.read_text()) and not path.name.startswith("test_"):
            found = script(str(path.relative_to(ROOT)), "--help")
            assert found.returncode == 0 and '"--json"' in text, (path.name, found.stderr)
