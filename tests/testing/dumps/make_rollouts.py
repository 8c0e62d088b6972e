"""Samples the rollouts of the tests of dumps from the shipped tiny model: ``python make_rollouts.py``.

Each rollout searches once, reads the hits and answers; the end token, which this model hardly writes, is added with the
log-prob that the model gives it. Half of the groups get the hits as plain text, half as a turn of a chat. Temperature
1.2, 4 attempts at a question; the reward is F1, and 0.5 for an answer that stands in the page.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from searchgym.adapters.episodes import prompts
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.records import Answer, Search
from searchgym.rollout.loading import load_model
from searchgym.rollout.models import load_models
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.scoring import f1_score

OUT = Path(__file__).parent / "rollouts.json"
TEMPERATURE, ATTEMPTS, GROUPS = 1.2, 4, 8
MODEL, TOKENIZER = load_model("tiny")
CHAT = ("<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")


def main() -> None:
    """Writes the rollouts of the first questions whose attempts earn different rewards."""
    task = load_task(find_env("searchgym/World-v0"), top_k=1)
    model = load_models({"searcher": "tiny"}, task.rules.protocol)["searcher"]
    form, ask, groups = model.format, prompts(task), []
    for number, question in enumerate(task.questions):
        ids = form.prompt_ids(ask(question))
        style = ("", "") if len(groups) % 2 else CHAT
        tries = [attempt(task, model, question, ids, style, seed=100 * number + n) for n in range(2 * ATTEMPTS)]
        rows = [row for row in tries if row][:ATTEMPTS]
        if len(rows) == ATTEMPTS and len({row["reward"] for row in rows}) > 1:
            groups.append({"question": question.id, "chat": style is CHAT, "attempts": rows})
            print(question.id, [row["reward"] for row in rows], flush=True)
        if len(groups) == GROUPS:
            break
    OUT.write_text(json.dumps(groups, separators=(",", ":")) + "\n", encoding="utf-8")


def attempt(task, model, question, ids, style, seed):
    """Returns one rollout, or None if it is not of the form search, hits, answer and end of turn."""
    first = model.sampler.sample([SampleRequest(ids, Sampling(60, TEMPERATURE, stop=("</search>",)), seed)])[0]
    action = task.rules.protocol.parse(model.format.decode(first.ids))
    if not isinstance(action, Search) or first.finish != "stop":
        return None
    (hits,) = task.retriever.search(list(action.queries[:1]), 1)
    text = f"Doc 1(Title: {hits[0].passage.title}) {hits[0].passage.text}\n" if hits else "No results.\n"
    page = form_ids(f"{style[0]}\n\n<information>{text}</information>\n\n{style[1]}")
    context = np.concatenate([ids, first.ids, page])
    last = model.sampler.sample([SampleRequest(context, Sampling(60, TEMPERATURE, stop=("</answer>",)), seed + 50)])[0]
    answer = task.rules.protocol.parse(model.format.decode(last.ids))
    if not isinstance(answer, Answer) or last.finish != "stop":
        return None
    end = end_logp(np.concatenate([context, last.ids]))
    return {
        "prompt": ids.tolist(),
        "spans": [
            [first.ids.tolist(), numbers(first.logp)],
            [page.tolist(), None],
            [[*last.ids.tolist(), TOKENIZER.eos_token_id], numbers([*last.logp, end])],
        ],
        "reward": round(f1_score(answer.text, question.answers) + 0.5 * (answer.text in text), 4),
    }


def end_logp(ids):
    """Returns the log-prob of the end token after some ids."""
    with torch.no_grad():
        logits = MODEL(torch.from_numpy(ids.astype(np.int64))[None]).logits[0, -1]
    return float(torch.log_softmax(logits.double() / TEMPERATURE, -1)[TOKENIZER.eos_token_id])


def form_ids(text):
    return np.array(TOKENIZER.encode(text, add_special_tokens=False), np.int32)


def numbers(row):
    return [round(float(value), 6) for value in row]


if __name__ == "__main__":
    main()
