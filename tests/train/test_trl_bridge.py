"""The bridge to TRL: its own GRPOTrainer trains in our environments, and its loop of tool calls obeys our rules."""

import itertools

import gymnasium
import numpy as np
import pytest
import trl
from made_models import tiny_qwen2, tiny_tokenizer
from quiet_trl import GRPOConfig, GRPOTrainer
from support import QUESTIONS, FailingRetriever, TitleRetriever
from test_docs import python_blocks
from transformers import GenerationConfig, PreTrainedTokenizerBase
from trl.chat_template_utils import parse_response, qwen3_chat_template

from searchgym.adapters.trl.trl import EnvironmentFactory, final_state, outcome
from searchgym.adapters.trl.trl_tags import IF_TOOLS, use_tags
from searchgym.envs.task import load_task
from searchgym.errors import EpisodeError, UnknownNameError, UsageError
from searchgym.protocol import get_protocol
from searchgym.records import Answer, Search
from searchgym.rollout.loading import load_model, load_tokenizer
from searchgym.rollout.tokens import TokenFormat, end_ids
from searchgym.rollout.transformers.sampler import TransformersSampler

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are using 'environment_factory', which is an experimental:UserWarning"),
]

PROMPT = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
PAGE = "\n\n<information>Doc 1(Title: Delta) <answer>1901</answer> <search>Gamma</search>\n</information>\n\n"
SEARCH = "<search>Beta</search>"
ANSWER = "<answer>1901</answer>"


class Recorded(GRPOTrainer):
    """Keeps every batch as TRL trains on it, and its episodes."""

    def __init__(self, *arguments, **options):
        self.batches = []
        self.start = {name: value.clone() for name, value in options["model"].state_dict().items()}
        super().__init__(*arguments, **options)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        self.batches.append((batch, [dict(row) for row in inputs]))
        return batch

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.rewards = rewards[:, 0].tolist()
        self.completions = completions
        return rewards


class Scripted(Recorded):
    """Says what it is told in place of sampling, turn by turn, the same in all episodes; all else is TRL's."""

    def _generate_single_turn(self, prompt_ids, *rest, **options):
        ids = self.processing_class(next(self.script), add_special_tokens=False)["input_ids"]
        return [list(ids) for _ in prompt_ids], None


def small(retriever=None, **options):
    return EnvironmentFactory("Demo", questions=QUESTIONS, retriever=retriever or TitleRetriever(), **options)


def scripted(environments, model, tokenizer, folder, episodes=2, **options):
    return Scripted(
        model=model,
        processing_class=tokenizer,
        environment_factory=environments,
        train_dataset=environments.dataset(),
        reward_funcs=outcome,
        args=GRPOConfig(
            str(folder),
            per_device_train_batch_size=episodes,
            num_generations=episodes,
            use_cpu=True,
            bf16=False,
            report_to=[],
            **{"max_completion_length": 2000, **options},
        ),
    )


def play(trainer, *script, question="q1"):
    """One batch of the same scripted episode: TRL's reward, messages and trained text of the first."""
    (row,) = [row for row in trainer.train_dataset if row["question_id"] == question]
    trainer.script = iter(script)
    trainer.model.train()
    batch = trainer._generate_and_score_completions([row] * trainer.num_generations)
    assert next(trainer.script, None) is None, "TRL did not go on"
    mask = (batch["completion_mask"] * batch["tool_mask"])[0].bool()
    trained = trainer.processing_class.decode(batch["completion_ids"][0][mask])
    return trainer.rewards[0], trainer.completions[0], trained


@pytest.fixture
def tags_trainer(tmp_path):
    model, tokenizer = load_model("tiny")

    def make(environments, **options):
        with use_tags(model, tokenizer):
            return scripted(environments, model, tokenizer, tmp_path, **options)

    return make


@pytest.fixture
def tools_trainer(tmp_path):
    """A random model with Qwen3's chat template: nothing is prepared."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = qwen3_chat_template

    def make(environments, **options):
        model = tiny_qwen2(max_position_embeddings=4096)
        return scripted(environments, model, tokenizer, tmp_path, **options)

    return make


# -- a whole training ----------------------------------------------------------------------------------------------


def spans(ids, mask):
    """Runs of tokens: (the model's?, ids)."""
    pairs = zip(mask.tolist(), ids.tolist(), strict=True)
    return [(bool(own), [i for _, i in run]) for own, run in itertools.groupby(pairs, key=lambda pair: pair[0])]


def replayed(env, form, question_id, said):
    """What our own environment makes of an episode that TRL trained on: checks its observations, returns the reward."""
    env.reset(options={"question_id": question_id})
    reward, done = 0.0, False
    for (own, ids), (_, shown) in itertools.zip_longest(said[::2], said[1::2], fillvalue=(False, None)):
        assert own
        assert not done
        observation, reward, done, _, _ = env.step(form.response_text(ids))
        if shown is not None:
            assert ids[-1] == form._tokenizer.convert_tokens_to_ids("</search>")
            assert shown == form.observation_ids(observation, "stop").tolist()
    return reward if done else 0.0


@pytest.mark.study
def test_trl_trains_the_tiny_model_by_the_code_of_the_docs(tmp_path, monkeypatch):
    (code,) = python_blocks("docs/do/trl.md")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trl, "GRPOTrainer", Recorded)
    scope = {}
    exec(compile(code, "docs/do/trl.md", "exec"), scope)
    trainer, environments = scope["trainer"], scope["environments"]
    steps = [row for row in trainer.state.log_history if "reward" in row]
    assert len(steps) == trainer.state.global_step == 20
    assert sum(row["tools/call_frequency"] > 0 for row in steps) == 20
    assert sum(row["tools/failure_frequency"] for row in steps) == 0

    assert environments.task.card.id == "searchgym/World-v0"
    env = gymnasium.make("searchgym/World-v0", questions=scope["WORLD"])
    form = TokenFormat(load_tokenizer("tiny"), environments.task.rules.protocol, chat=True)
    prompts = {row["question_id"]: row["prompt"][0]["content"] for row in environments.dataset()}
    rewards, observed = [], 0
    for (batch, rows), row_of_log in zip(trainer.batches, steps, strict=True):
        own = []
        for i, row in enumerate(rows):
            prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()]
            assert prompt.tolist() == form.prompt_ids(prompts[row["question_id"]]).tolist()
            kept = batch["completion_mask"][i].bool()
            said = spans(batch["completion_ids"][i][kept], batch["tool_mask"][i][kept])
            observed += len(said) // 2
            own.append(replayed(env, form, row["question_id"], said))
        assert row_of_log["reward"] == pytest.approx(np.mean(own))
        rewards += own
    assert observed >= len(rewards) == 160
    assert 0 < sum(rewards) < len(rewards)
    now = trainer.model.state_dict()
    assert max(float((now[name] - old).abs().max()) for name, old in trainer.start.items()) > 1e-4
    check_saved(tmp_path / "runs" / "trl", form)


def check_saved(folder, form):
    """What TRL saved is read here as what was trained: the same prompts, the same ends."""
    model, tokenizer = load_model(folder)
    assert TransformersSampler(model, tokenizer).ends == set(end_ids(load_tokenizer("tiny")))
    again = TokenFormat(tokenizer, form.protocol, chat=True)
    assert again.prompt_ids("who?").tolist() == form.prompt_ids("who?").tolist()


# -- episodes in TRL's own loop ------------------------------------------------------------------------------------


def test_an_episode_with_tags(tags_trainer):
    trainer = tags_trainer(small())
    thought = "<think> who?</think>"
    reward, messages, trained = play(trainer, thought + SEARCH, "<search>Gamma</search>", thought + ANSWER)
    assert reward == 1.0
    assert [message["role"] for message in messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
    assert (
        messages[1]["content"] == "\n\n<information>Doc 1(Title: Beta) Beta was founded by Gamma.\n</information>\n\n"
    )
    assert trained == f"{thought}{SEARCH}<search>Gamma</search>{thought}{ANSWER}"
    assert [s.query for s in trainer.environments[0].state.searches] == ["Beta", "Gamma"]
    assert trainer._metrics["train"]["searches"] == [2.0]
    assert play(trainer, ANSWER, question="q0")[0] == 0.0
    assert play(trainer, "<answer> gamma. </answer>", question="q0")[0] == 1.0
    assert play(trainer, "1901<|im_end|>")[0] == 0.0


def test_an_episode_with_a_template_that_has_tools(tools_trainer):
    trainer = tools_trainer(small(protocol="tool_calls"))
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "Beta"}}\n</tool_call><|im_end|>'
    reward, messages, trained = play(trainer, call, f"{ANSWER}<|im_end|>")
    assert reward == 1.0
    assert messages[1]["content"] == "Doc 1(Title: Beta) Beta was founded by Gamma."
    assert trained == f"{call}{ANSWER}<|im_end|>"
    prompt = trainer.processing_class.decode(trainer.batches[0][0]["prompt_ids"][0])
    assert '"name": "search"' in prompt
    assert "<search>" not in prompt
    assert play(trainer, f"<think>\n{ANSWER}\n</think>\n\nno idea<|im_end|>")[0] == 0.0
    call = call.removesuffix("<|im_end|>")
    reward, messages, _ = play(trainer, f"{ANSWER}{call}{call}<|im_end|>", "<answer>1902</answer><|im_end|>")
    assert (reward, len(messages)) == (0.0, 4)
    assert final_state(trainer.environments[0], messages).turn == 3


def test_pages_and_prompts_earn_nothing(tags_trainer):
    trainer = tags_trainer(small())
    reward, messages, _ = play(trainer, "<search>Delta</search>", "it stands there<|im_end|>")
    assert "<answer>1901</answer>" in messages[1]["content"]
    assert (reward, messages[-1]) == (0.0, {"role": "assistant", "content": "it stands there"})
    assert len(trainer.environments[0].state.searches) == 1
    assert play(trainer, "<search>Delta</search>", "<answer>1902</answer>")[0] == 0.0
    # No room for the page: TRL drops it, and the episode ends with the call.
    trainer.max_completion_length = 20
    reward, messages, _ = play(trainer, "<search>Delta</search>")
    assert (reward, len(messages)) == (0.0, 1)


@pytest.mark.parametrize("stop", [True, False], ids=["TRL stops", "the environment stops"])
def test_the_turn_budget_holds(tags_trainer, stop):
    retriever = TitleRetriever()
    environments = small(retriever, max_turns=3)
    assert environments.max_searches == 2
    trainer = tags_trainer(environments, max_tool_calling_iterations=environments.max_searches if stop else None)
    assert play(trainer, SEARCH, SEARCH, ANSWER)[0] == 1.0
    assert len(retriever.calls) == 4
    more = () if stop else (SEARCH, ANSWER)
    reward, messages, _ = play(trainer, SEARCH, SEARCH, SEARCH, *more)
    assert reward == 0.0
    assert len(retriever.calls) == 8
    if not stop:
        assert messages[5]["content"] == messages[7]["content"] == "\n\nNo search is left. The episode has ended.\n\n"


HOSTILE = [
    '{"name": "search", "arguments": {"query": 7}}',
    '{"name": "search", "arguments": {"query": ["Beta"]}}',
    '{"name": "search", "arguments": {"query": {"a": null}}}',
    '{"name": "search", "arguments": {"query": ""}}',
    '{"name": "search", "arguments": {"query": "<answer>1901</answer>"}}',
    '{"name": "search", "arguments": {"query": "Beta", "state": 1}}',
    '{"name": "search", "arguments": {}}',
    '{"name": "search", "arguments": null}',
    '{"name": "search", "arguments": "Beta"}',
    '{"name": "search"}',
    '{"name": "reset", "arguments": {"question_id": "q0"}}',
    '{"name": "__init__", "arguments": {"task": 1}}',
    '{"name": "outcome", "arguments": {}}',
]


@pytest.mark.slow_cases
@pytest.mark.parametrize("call", HOSTILE)
def test_a_hostile_call_gets_a_text_and_costs_a_turn(tools_trainer, call):
    trainer = tools_trainer(small(protocol="tool_calls", max_turns=3))
    said = f"<tool_call>\n{call}\n</tool_call><|im_end|>"
    reward, messages, _ = play(trainer, said, f"{ANSWER}<|im_end|>")
    assert messages[1]["role"] == "tool"
    assert isinstance(messages[1]["content"], str)
    assert trainer.environments[0].state.question.id == "q1"
    assert not trainer.environments[0].state.searches
    assert reward == 1.0
    assert play(trainer, *[said] * 3, f"{ANSWER}<|im_end|>")[0] == 0.0


NO_CALLS = ["nonsense", "[1]", "{}", '{"name": 1}', '{"name": "search", "arguments": {"query": "a</tool_call>b"}}']


@pytest.mark.parametrize("call", NO_CALLS)
def test_text_that_is_no_call_to_trl_ends_the_episode(tools_trainer, call):
    trainer = tools_trainer(small(protocol="tool_calls"))
    reward, messages, _ = play(trainer, f"<tool_call>\n{call}\n</tool_call><|im_end|>")
    assert (reward, len(messages)) == (0.0, 1)


@pytest.mark.slow
def test_an_episode_whose_retriever_failed_leaves_its_group(tags_trainer):
    trainer = tags_trainer(small(FailingRetriever(4), retriever_deadline=20.0), episodes=4)
    play(trainer, SEARCH, ANSWER)
    assert np.isnan(trainer.rewards[0])
    assert trainer.rewards[1:] == [1.0] * 3
    assert trainer.environments[0].state.stop_reason == "retriever_error"
    assert "on fire" not in trainer.completions[0][1]["content"]
    metrics = trainer._metrics["train"]
    assert (metrics["rewards/outcome/mean"], metrics["retriever_errors"]) == ([1.0], [0.25])
    batch, _ = trainer.batches[0]
    assert batch["advantages"].tolist() == [0.0] * 4
    assert batch["num_items_in_batch"] == (batch["completion_mask"] * batch["tool_mask"]).sum()


# -- the parts by themselves ---------------------------------------------------------------------------------------


def episode(environments, *queries, question="q1"):
    environment = environments()
    environment.reset(question_id=question, prompt=[])
    for query in queries:
        environment.search(query)
    return environment


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


RESULT = {"role": "tool", "name": "search", "content": ANSWER}
CALLS = {"tool_calls": [{"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}]}


@pytest.mark.parametrize(
    ("messages", "reward"),
    [
        ([said(ANSWER)], 1.0),
        ([said("", **CALLS), RESULT, said(f"<think>so</think>{ANSWER}")], 1.0),
        ([said("<answer>1902</answer>")], 0.0),
        ([said(f"<think>{ANSWER}</think>")], 0.0),
        ([said("<answer>1902</answer>" + ANSWER)], 0.0),
        ([said("1901")], 0.0),
        ([said("", **CALLS), RESULT], 0.0),
        ([said(ANSWER, **CALLS)], 0.0),
        ([said(ANSWER), RESULT], 0.0),
        ([said("", **CALLS), *[RESULT] * 4, said(ANSWER)], 1.0),
        ([said("", **CALLS), *[RESULT] * 5, said(ANSWER)], 0.0),
        ([], 0.0),
    ],
)
def test_rewards_by_hand(messages, reward):
    environment = episode(small(max_turns=5))
    assert outcome([messages], [environment]) == outcome([messages], [environment]) == [reward]
    assert outcome([messages], [episode(small(reward="f1"))]) == [reward]


def test_final_states_are_those_of_the_core():
    environments = small(max_turns=2)
    state = final_state(episode(environments, "Beta"), [said("", **CALLS), RESULT, said(ANSWER)])
    assert (state.stop_reason, state.turn, state.answer) == ("answer", 2, Answer("1901"))
    assert [s.query for s in state.searches] == ["Beta"]
    state = final_state(episode(environments, "Beta", "Beta", "Beta"), [RESULT, said(ANSWER)])
    assert (state.stop_reason, state.turn, state.answer) == ("turns", 2, None)
    assert final_state(episode(environments), [said("nothing")]).stop_reason is None


def test_a_search_that_trl_did_not_read_is_told():
    with pytest.warns(UserWarning, match="use_tags"):
        assert outcome([[said(SEARCH)]], [episode(small())]) == [0.0]


def test_one_retriever_for_all_environments():
    built = []

    def build(passages):
        built.append(len(list(passages)))
        return TitleRetriever()

    environments = EnvironmentFactory("Demo", retriever=build)
    made = [environments() for _ in range(5)]
    assert len(built) == 1
    assert {id(environment.task.retriever) for environment in made} == {id(environments.task.retriever)}


@pytest.mark.parametrize(
    "query", [7, None, ["Beta"], {"a": 1}, "", " ", "<answer>1901</answer>", "x" * 2**21, "\ud800"]
)
def test_hostile_arguments_are_answered(query):
    for protocol in ("tags", "tool_calls"):
        environment = episode(small(protocol=protocol))
        assert isinstance(environment.search(query), str)
        assert (environment.state.turn, environment.state.answer, environment.state.done) == (1, None, False)
        assert environment.state.invalid == (query != "\ud800")


def test_what_is_wrong_is_said():
    environments = small()
    with pytest.raises(UnknownNameError, match="question id 'q9'"):
        environments().reset(question_id="q9")
    with pytest.raises(UsageError, match=r"no question_id, only prompt.*dataset\(\)"):
        environments().reset(prompt="x")
    with pytest.raises(EpisodeError, match="reset"):
        environments().search("x")
    with pytest.raises(EpisodeError, match="reset"):
        outcome([[]], [environments()])
    with pytest.raises(UsageError, match="agent oracle has 0 roles"):
        small(agent="oracle")
    with pytest.raises(UnknownNameError, match="'top_k'"):
        small(topk=3)
    with pytest.raises(UnknownNameError):
        environments.dataset(load_task(EnvironmentFactory("Demo").task.card).questions)


def test_the_rows_of_the_dataset():
    environments = small()
    rows = environments.dataset().to_list()
    assert [row["question_id"] for row in rows] == ["q0", "q1", "q2"]
    ((message,),) = [row["prompt"] for row in environments.dataset(QUESTIONS[1:2])]
    assert message["role"] == "user"
    assert message["content"].endswith(QUESTIONS[1].text)
    assert "<search>your query</search>" in message["content"]
    (row,) = small(protocol="tool_calls").dataset(QUESTIONS[:1])
    assert "<tool_call>" not in row["prompt"][0]["content"]
    assert "<answer>your answer</answer>" in row["prompt"][0]["content"]


# -- tags for a model that has no tools ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared():
    model, tokenizer = load_model("tiny")
    with use_tags(model, tokenizer):
        inside = model.generation_config.eos_token_id
    return tokenizer, inside, model.generation_config.eos_token_id


def test_only_inside_the_block_do_tags_end_a_generation(prepared):
    tokenizer, inside, after = prepared
    assert after == tokenizer.eos_token_id
    assert [tokenizer.decode([i]) for i in inside] == ["<|im_end|>", "</search>", "</answer>"]


RESPONSES = [
    SEARCH,
    f"<think> a</think>{SEARCH}",
    f"<think> never closed {SEARCH}",
    f"<think> a {SEARCH}\n<think></think> b {SEARCH} c",
    "<search> a  b \n</search>",
    "<answer>half <search>x</search>",
    "<search>half <answer>x</answer>",
    "<search>never closed",
    "<search>never closed<|im_end|>",
    ANSWER,
    f"text {ANSWER}",
    "plain<|im_end|>",
    "</search>",
    "<tool_call>{}</tool_call><|im_end|>",
]


@pytest.mark.parametrize("text", RESPONSES)
def test_trl_reads_what_the_protocol_reads(prepared, text):
    tokenizer, _, _ = prepared
    prefix = tokenizer(PROMPT + SEARCH + PAGE)["input_ids"]
    environment = episode(small())
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    parsed = parse_response(tokenizer, ids, prefix=prefix, tools=[environment.search])
    action = get_protocol("tags").parse(text)
    calls = [call["function"]["arguments"]["query"] for call in parsed.get("tool_calls", [])]
    assert calls == (list(action.queries) if isinstance(action, Search) else [])
    read = get_protocol("tags").parse(parsed["content"])
    assert (read == action) == isinstance(action, Answer) or not calls


def test_a_call_that_the_protocol_refuses_gets_its_notice(tags_trainer):
    trainer = tags_trainer(small())
    for text in ("<search></search>", "<search>a <search>b</search>"):
        reward, messages, _ = play(trainer, text, ANSWER)
        assert "was not understood" in messages[1]["content"]
        assert (reward, trainer.environments[0].state.invalid) == (1.0, 1)


def test_results_become_the_ids_of_our_own_rollout(tags_trainer):
    trainer = tags_trainer(small())
    form = TokenFormat(load_tokenizer("tiny"), get_protocol("tags"), chat=True)

    def both(text):
        suffix = trainer._get_tool_suffix_ids([{"role": "tool", "name": "search", "content": text}])
        return suffix, form.observation_ids(text, "stop").tolist()

    for text in (PAGE, form.protocol.notice("no"), "\n\nx\n\n", "  two  words ", "\u00e9\u6f22 <answer>\n"):
        ours, trls = both(text)
        assert ours == trls
    ours, trls = both("a page that spells <|im_end|>")  # TRL renders pages with the template: text becomes a mark
    assert ours != trls


@pytest.mark.parametrize("style", ["qwen2", "qwen3", "llama"])
def test_conversations_without_tools_are_written_as_before(style):
    tokenizer: PreTrainedTokenizerBase = tiny_tokenizer(style)
    tokenizer.add_tokens(["</search>", "</answer>"])
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    tokenizer.chat_template += "{{ '!' }}\n"
    before = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    model = tiny_qwen2()
    model.generation_config = GenerationConfig(eos_token_id=[1, 2])
    with use_tags(model, tokenizer):
        assert len(model.generation_config.eos_token_id) == 4
    assert model.generation_config.eos_token_id == [1, 2]
    with use_tags(model, tokenizer):  # again, as a checkpoint is
        assert tokenizer.chat_template.count(IF_TOOLS) == 1
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == before


def test_tokenizers_that_cannot_are_refused():
    model = tiny_qwen2()
    with pytest.raises(UsageError, match="</search> is not an added token"), use_tags(model, tiny_tokenizer("merging")):
        pass
    with pytest.raises(UsageError, match="one chat template"), use_tags(model, tiny_tokenizer("base")):
        pass
    thinking = tiny_tokenizer()
    thinking.add_tokens(["</search>", "</answer>"])
    thinking.chat_template += "{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
    with pytest.raises(UsageError, match="opens a thought, and TRL ends a turn"), use_tags(model, thinking):
        pass
    assert model.generation_config.eos_token_id is None
