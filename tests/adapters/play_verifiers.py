"""Plays a script through verifiers: its `vf-eval` in this process, with a stand-in for a model's server."""

import json
import re
import sys
from pathlib import Path

from chat_server import says
from scripts import QUESTION, Played
from verifiers.v1.cli.eval.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "do" / "adapters.md").read_text()
(PACKAGE,) = re.findall(r"`searchgym_v1/__init__.py`:\n\n```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def play(env, script, folder):
    name = "searchgym_hub_v1"
    (folder / f"{name}.py").write_text(PACKAGE)
    sys.path.insert(0, str(folder))
    try:
        with says(script) as (url, asked):
            main([
                name, "--env.taskset.env", env,
                "--env.agent.harness.id", name, "--env.agent.runtime.type", "subprocess",
                "-m", "script", "--client.type", "eval", "--client.base-url", url, "--client.api-key-var", "PATH",
                "--select.include.ids", QUESTION, "--no-push", "--no-rich", "-o", str(folder / "out"),
            ])  # fmt: skip
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)
    (file,) = (folder / "out").rglob("traces.jsonl")
    (episode,) = map(json.loads, file.read_text().splitlines())
    (trace,) = episode["traces"]
    told = trace["info"]["searchgym"]
    if told["stop_reason"] == "retriever_error":  # an error there, which leaves training
        assert "the search failed" in json.dumps(trace["errors"])
    else:
        assert trace["errors"] == []
        assert trace["rewards"]["outcome"]["score"] == told["reward"]
        assert trace["metrics"]["searches"] == told["searches"]
    messages = [message["content"] for message in asked[-1]["messages"]]
    return Played(messages[2::2], told)
