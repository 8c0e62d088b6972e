"""The agent of docs/do/coming_from.md: Search-R1's own prompt, taken from a row of its data."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
from support import run_team

from searchgym.agents.base import load_agent
from searchgym.corpora.questions import read_questions

PAGE = (Path(__file__).parents[2] / "docs" / "do" / "coming_from.md").read_text(encoding="utf-8")


def test_the_prompt_of_a_data_row_becomes_the_role_prompt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (card,) = re.findall(r"`released/card\.yaml`:\n\n```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (code,) = re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    instruction = 'Think and search, then answer: {"a": 1}. Question: '
    row = {
        "data_source": "nq",
        "prompt": [{"role": "user", "content": f"{instruction}Who wrote Zor?\n"}],
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada"]}},
        "extra_info": {"index": 0, "split": "test"},
    }
    parquet.write_table(pa.Table.from_pylist([row]), "test.parquet")
    Path("released").mkdir()
    Path("released/card.yaml").write_text(card)
    exec(compile(code, "docs/do/coming_from.md", "exec"), {})
    (question,) = read_questions("test.parquet")
    agent = load_agent("./released")
    role = agent.roles["searcher"]
    assert role.render(question=question.text) == row["prompt"][0]["content"].strip()
    assert (role.max_tokens, question.answers) == (500, ("Ada",))
    replies = ["<search>mapped the Sarn Islands</search>", "<answer>Dunmere</answer>"]
    episode, prompts = run_team("./released", {"searcher": replies})
    assert (episode.answer.text, episode.stop_reason, len(episode.searches)) == ("Dunmere", "answer", 1)
    assert "Think and search, then answer" in prompts[0]
