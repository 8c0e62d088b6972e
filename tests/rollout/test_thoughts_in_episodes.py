"""Thoughts in rollouts: a stop string in a thought ends nothing, and what the prompt opened is thought."""

import asyncio

import numpy as np
import pytest
import torch
from made_models import CHATML, tiny_qwen2, tiny_tokenizer
from support import CARD, TitleRetriever

from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.envs.task import load_task
from searchgym.errors import UsageError
from searchgym.protocol import get_protocol, list_dialects
from searchgym.records import Answer, Invalid, Question
from searchgym.rollout.api.sampler import MessageFormat
from searchgym.rollout.chat import thought_counts
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Loading, Model, opened_models
from searchgym.rollout.sampler import Sampled
from searchgym.rollout.storage import EpisodeWriter, read_episodes
from searchgym.rollout.tokens import TokenFormat
from searchgym.testing.fakes import Replies
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.demonstrations.play import first_prompt, response_after

ROME = Question("q", "Which city?", ("Rome",))
OPENS = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
"""ChatML whose prompts open a thought, as those of Qwen3-Thinking."""
assert OPENS != CHATML


class Writes:
    """Sampler of a model that writes fixed texts, one per turn; like an engine it knows stop strings and nothing else.

    A request that ends with what was written of a turn goes on with it; any other begins the next turn.
    """

    max_context, version = 100_000, 0

    def __init__(self, tokenizer, *texts):
        self.tokenizer = tokenizer
        self.turns = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
        self.requests, self.written, self.left = [], [], []

    def sample(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        self.requests.append(request)
        seen = request.ids.tolist()
        if not self.written or seen[-len(self.written) :] != self.written:
            self.written, self.left = [], self.turns.pop(0)
        new, finish = [], "length"
        for _ in range(request.sampling.max_tokens):
            new.append(self.left.pop(0))
            if any(stop in self.tokenizer.decode(new) for stop in request.sampling.stop):
                finish = "stop"
                break
            if not self.left:
                finish = "eos"
                break
        self.written += new
        return Sampled(np.array(new, np.int32), np.full(len(new), -0.5, np.float32), finish)

    def update(self, state, version): ...
    def forget(self): ...
    def close(self): ...


def episode_of(*texts, template=CHATML, agent=None, style="qwen2", dialect=None):
    """Runs the Search-R1 agent on one question with a model that writes the texts; returns episode and sampler."""
    tokenizer = tiny_tokenizer(style)
    tokenizer.chat_template = template
    sampler = Writes(tokenizer, *texts)
    rules = {} if dialect is None else {"protocol": "tool_calls", "dialect": dialect}
    task = load_task(CARD, questions=[ROME], retriever=TitleRetriever(), **rules)
    model = Model.over("tiny", sampler, TokenFormat(tokenizer, task.rules.protocol, chat=True))
    episodes = []
    engine = Engine(task, agent or load_agent("search-r1"), {"searcher": model}, canonical=True)
    asyncio.run(engine.run(task.questions, episodes.append))
    return episodes[0], sampler


THOUGHT = "maybe <answer>Paris</answer> no</think><answer>Rome</answer><|im_end|>"


@pytest.mark.parametrize(("template", "text"), [(CHATML, "<think>" + THOUGHT), (OPENS, THOUGHT)])
@pytest.mark.parametrize("style", ["qwen2", "merging"])
def test_an_answer_in_a_thought_does_not_end_the_response(template, text, style):
    episode, sampler = episode_of(text, template=template, style=style)
    assert (episode.answer, episode.reward, episode.turns) == (Answer("Rome"), 1.0, 1)
    (call,) = episode.calls
    opening = "<think>\n" if template is OPENS else "<think>"
    assert call.text == opening + THOUGHT.removesuffix("<|im_end|>")
    assert call.requests == len(sampler.requests) == 3  # cut in the thought, cut at its end, cut at the answer
    assert [len(request.sampling.stop) for request in sampler.requests] == [2, 1, 2]
    (sample,) = samples_from(episode)
    assert sampler.tokenizer.decode(sample.ids[sample.mask]) == text.removesuffix("<|im_end|>")  # all sampled, no more


def test_a_search_in_a_thought_is_not_searched():
    episode, _ = episode_of(
        "I could <search>Delta</search></think> <search>Beta</search>", "</think><answer>Rome</answer>", template=OPENS
    )
    assert [search.query for search in episode.searches] == ["Beta"]
    assert [call.requests for call in episode.calls] == [3, 1]


def test_a_closing_tag_that_shares_a_token_with_the_stop_string_counts():
    """``></`` may be one token: the stop string then takes the beginning of ``</think>`` with it."""
    episode, sampler = episode_of("<answer>Paris</answer></think><answer>Rome</answer>", template=OPENS)
    assert episode.answer == Answer("Rome")
    assert all(request.sampling.stop for request in sampler.requests)


def test_a_thought_that_never_closes_is_refused_with_its_reason():
    episode, _ = episode_of("<think>hm <answer>Rome</answer><|im_end|>", "<answer>Rome</answer>", template=CHATML)
    assert (episode.invalid, episode.turns, episode.answer) == (1, 2, Answer("Rome"))
    assert [call.legal for call in episode.calls] == [False, True]
    refused = get_protocol("tags").parse(episode.calls[0].text)
    assert refused == Invalid("the thought never closes: write </think> before you act")


def test_a_notice_in_the_same_turn_stands_behind_the_thought():
    """A response that its limit cut in a thought leaves it open: the notice closes it, or it would be thought too."""
    short = with_max_tokens(load_agent("search-r1"), 20)
    episode, sampler = episode_of(
        "a thought that is too long " * 9, "<answer>Rome</answer>", template=OPENS, agent=short
    )
    (context,) = episode.contexts
    notice = str(sampler.tokenizer.decode(context.spans[2].ids))
    assert notice.startswith("\n</think>\n\n")
    assert (episode.calls[1].text, episode.answer) == ("<answer>Rome</answer>", Answer("Rome"))


@pytest.mark.parametrize("template", [CHATML, OPENS])
def test_a_thought_is_cut_and_its_closing_tag_not_trained(template, tmp_path):
    agent = with_max_tokens(load_agent("search-r1"), 60, 8)
    thought = ("" if template is OPENS else "<think>") + "I need the birth place of the author first of all"
    episode, sampler = episode_of(thought, "<answer>Rome</answer><|im_end|>", template=template, agent=agent)
    assert episode.answer == Answer("Rome")
    first, second = episode.calls
    assert (first.end - first.start, first.thought_cut, first.cut, second.thought_cut) == (8, True, False, False)
    assert first.text.endswith("\n</think>\n\n") and second.text == "<answer>Rome</answer>"
    assert [request.sampling.max_tokens for request in sampler.requests] == [8, 52]
    kinds = [span.kind for span in episode.contexts[0].spans]
    assert kinds == ["prompt", "model", "observation", "model"]
    (sample,) = samples_from(episode)
    spliced = episode.contexts[0].spans[2].ids
    assert sampler.tokenizer.decode(spliced) == "\n</think>\n\n"
    assert not sample.mask[first.end : first.end + len(spliced)].any()
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        writer.write(episode)
    assert list(read_episodes(tmp_path / "episodes.jsonl")) == [episode]


def test_a_response_outside_thoughts_passes_the_limit_of_thoughts():
    agent = with_max_tokens(load_agent("search-r1"), 60, 4)
    text = "<answer>Rome, which is the capital of a country</answer>"
    episode, sampler = episode_of(text, agent=agent)
    (call,) = episode.calls
    assert (call.text, call.thought_cut, call.requests) == (text, False, 2)
    assert [request.sampling.max_tokens for request in sampler.requests] == [4, 56]


def test_a_server_of_messages_cannot_cut_thoughts():
    model = Model.over("served", Replies(["x"]), MessageFormat(get_protocol("tags")))
    task = load_task(CARD, questions=[ROME], retriever=TitleRetriever())
    with pytest.raises(UsageError, match="served does not support max_thought_tokens"):
        Engine(task, with_max_tokens(load_agent("search-r1"), None, 8), {"searcher": model})


@pytest.mark.parametrize(
    ("stop", "text", "wanted"),
    [
        (("</think>",), "a</search></", ("</think>", "think>")),
        (("</think>",), "a</search>", ("</think>",)),
        (("</search>", "</answer>"), "</think><", ("</search>", "</answer>", "/search>", "/answer>")),
    ],
)
def test_what_is_missing_of_a_stop_string_ends_the_rest(stop, text, wanted):
    from searchgym.rollout.chat import _stops

    assert _stops(stop, text) == wanted


def test_thoughts_are_counted_by_what_became_of_them():
    quoting = episode_of("<think>" + THOUGHT)[0]
    open_ended = episode_of("<think>hm<|im_end|>", "<answer>Rome</answer>")[0]
    plain = episode_of("<answer>Rome</answer>")[0]
    counts = thought_counts([quoting, open_ended, plain])
    assert counts == {"open_thoughts": [0.0, 1.0, 0.0], "resumed": [2.0, 0.0, 0.0]}
    assert thought_counts([plain]) == {}


@pytest.mark.parametrize(
    ("thought", "text", "written"),
    [
        ("", "<search>a</search>", "<search>a</search>"),
        ("<think>\n", "<think> hm</think><search>a</search>", " hm</think><search>a</search>"),
        ("<think>\n", "<search>a</search>", "</think>\n\n<search>a</search>"),
        ("[THINK]", "<answer>a</answer>", "[/THINK]\n\n<answer>a</answer>"),
    ],
)
def test_a_demonstration_goes_on_with_the_thought_of_its_prompt(thought, text, written):
    assert response_after(thought, text) == written


QUOTING = {
    "hermes": '<tool_call>\n{"name": "search", "arguments": {"query": "Beta </tool_call>"}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=search>\n<parameter=query>\nBeta </tool_call>\n</parameter>\n"
    "</function>\n</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "search", "arguments": {"query": "Beta </tool_call>"}}]',
    "llama3": '{"name": "search", "parameters": {"query": "Beta </tool_call>"}}',
    "gemma": '```tool_code\nsearch(query="Beta </tool_call>")\n```',
    "gpt_oss": "<|channel|>commentary to=functions.search <|constrain|>json<|message|>"
    '{"query": "Beta </tool_call>"}<|call|>',
}
"""A search in each dialect whose query quotes a stop string."""


@pytest.mark.parametrize("dialect", list_dialects())
def test_a_query_that_quotes_a_stop_string_is_searched_whole(dialect):
    episode, _ = episode_of(f"{QUOTING[dialect]}<|im_end|>", "<answer>Rome</answer>", dialect=dialect)
    assert [search.query for search in episode.searches] == ["Beta </tool_call>"]
    assert (episode.answer, episode.invalid) == (Answer("Rome"), 0)


# -- real samplers -------------------------------------------------------------------------------------------------

DRAFTED = "maybe <answer>Paris</answer> no</think>\n<answer>Rome</answer>"
"""An answer in a thought that the prompt opened, and the answer."""


def memorised(folder, text, template, protocol):
    """Saves a tiny model that writes a text, greedily, after the prompt of `ROME`."""
    tokenizer = tiny_tokenizer("qwen2")
    tokenizer.chat_template = template
    form = TokenFormat(tokenizer, protocol, chat=True)
    prompt = first_prompt(load_agent("search-r1"), form, ROME).tolist()
    ids = torch.tensor([prompt + list(tokenizer(text, add_special_tokens=False)["input_ids"])])
    model = tiny_qwen2(sharp=0.15, hidden_size=64, num_attention_heads=2, max_position_embeddings=1024).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(200):
        logits = model(input_ids=ids, logits_to_keep=ids.shape[1] - len(prompt) + 1).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :])
        if loss.item() < 0.02:
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.02
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


STOP_IN_THOUGHT = (DRAFTED, OPENS, {}, 3)
STOP_IN_QUOTE = (QUOTING["hermes"], CHATML, {"protocol": "tool_calls"}, 2)


@pytest.mark.parametrize(
    ("sampler", "text", "template", "rules", "requests"),
    [
        pytest.param("transformers", *STOP_IN_THOUGHT, id="transformers-thought"),
        pytest.param("transformers", *STOP_IN_QUOTE, id="transformers-quoted"),
        pytest.param("vllm", *STOP_IN_THOUGHT, id="vllm-thought", marks=pytest.mark.study),
        pytest.param("vllm", *STOP_IN_QUOTE, id="vllm-quoted", marks=pytest.mark.engine),
    ],
)
@pytest.mark.filterwarnings("default")  # vLLM and its imports raise warnings that we cannot mend
def test_samplers_go_on_after_a_stop_string_that_ends_nothing(tmp_path, text, template, rules, requests, sampler):
    task = load_task(CARD, questions=[ROME], retriever=TitleRetriever(), max_turns=2, **rules)
    memorised(tmp_path / "model", text, template, task.rules.protocol)
    episodes, how = [], Loading(by=sampler, max_context=1024)
    with opened_models({"searcher": tmp_path / "model"}, task.rules.protocol, how) as models:
        asyncio.run(Engine(task, load_agent("search-r1"), models).run(task.questions, episodes.append))
    call = episodes[0].calls[0]
    assert (call.text, call.requests) == ("<think>\n" * (template is OPENS) + text, requests)
    if text == DRAFTED:
        assert (episodes[0].answer, episodes[0].reward) == (Answer("Rome"), 1.0)
    else:
        assert [search.query for search in episodes[0].searches] == ["Beta </tool_call>"]
