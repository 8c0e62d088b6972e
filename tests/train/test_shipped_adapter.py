"""The adapters that ship: their cards, their size, and what their practice holds."""

import os
import re
from pathlib import Path

import pytest
from support import command_line

from searchgym.corpora.files import sha256_file
from searchgym.corpora.questions import read_questions
from searchgym.options.cards import list_cards
from searchgym.options.model_cards import AdapterCard, load_model_card
from searchgym.protocol import get_protocol
from searchgym.rollout.folders import adapter_base, is_adapter
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.storage import read_episodes
from searchgym.rollout.tokens import TokenFormat

CARD = list_cards("models")["smollm2-searcher"]
DATA = os.environ.get("SEARCHGYM_DATA")
MADE = {
    "runs/smol/set/questions/train.jsonl": "e1655e5f2b8f29fd89461d59d5665010d3268d0a155259357743c5a30c624e58",
    "runs/smol/read/episodes.jsonl": "7f6fbb94d5ebcde511afe64a3d72a832959986ed12817f0a50d052140edb2182",
    "runs/smol/read/episodes.tokens.bin": "1c0de6001acfa396f70a8067209b2abb83f1391e6ac51d0929608071d5e3c414",
    "runs/smol/natural/episodes.jsonl": "4b7921e85478cddabbfd37c364036b3a12ce09b5d5d0cc8496e7ab3083fbde43",
    "runs/smol/natural/episodes.tokens.bin": "83a722982129791eb12c4d1d5b1b4b679e82ed1babc59a239d08e99dda0d8fef",
}
"""Files that the commands of the card make today. At the card's own commit they made those of its `trained_on`: since
then, generated questions stand in the order of hashes, and a corpus in one piece is cut into splits."""


@pytest.mark.parametrize(
    ("name", "base"),
    [("smollm2-searcher", "smollm2"), ("smollm2-grpo", "smollm2"), ("qwen-searcher", "qwen2.5-coder-0.5b")],
)
def test_the_card_is_of_these_files(name, base):
    path = list_cards("models")[name]
    card, folder = load_model_card(path), path.parent
    assert isinstance(card, AdapterCard) and is_adapter(folder)
    weights = folder / "adapter_model.safetensors"
    assert card.sha256 == sha256_file(weights)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 25_000_000
    assert adapter_base(folder) == card.base == base
    assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in [*card.trained_on.values(), *card.held_out.values()])


@pytest.mark.study
@pytest.mark.skipif(not DATA, reason="SEARCHGYM_DATA names no folder with the real questions")
def test_practice_is_made_again_and_holds_nothing_of_the_evaluation(tmp_path, monkeypatch, capsys):
    """The same files each time, which hold no evaluation question, gold page, or pair of gold page and answer."""
    card, run, data = load_model_card(CARD), command_line(monkeypatch, capsys), Path(DATA)
    assert isinstance(card, AdapterCard)
    monkeypatch.chdir(tmp_path)
    assert card.held_out == {name: sha256_file(data / name) for name in card.held_out}
    for command in card.commands:
        program, *arguments = command.replace("$SEARCHGYM_DATA", str(data)).split()
        if arguments[0] != "train":
            assert program == "searchgym" and run(*arguments)[0] == 0, command
    assert {name: sha256_file(tmp_path / name) for name in card.trained_on} == MADE
    kept = [question for name in card.held_out for question in read_questions(data / name)]
    gold = {title.casefold().strip() for question in kept for title in question.gold_titles}
    form = TokenFormat(load_tokenizer(card.base), get_protocol("tags"), chat=True)
    texts = [
        form.decode([i for span in episode.contexts[0].spans for i in span.ids])
        for name in card.trained_on
        if name.endswith("episodes.jsonl")
        for episode in read_episodes(tmp_path / name)
    ]
    titles = {title.casefold().strip() for text in texts for title in re.findall(r"Doc \d+\(Title: (.*?)\) ", text)}
    assert len(titles) > 500 and not titles & gold
    assert not [question.text for question in kept for text in texts if question.text in text]


def test_reinforcement_questions_are_the_cards_and_held_out():
    """What `smollm2-grpo` was trained on: chosen questions of the train split, of which no page is one of the test."""
    card = load_model_card(list_cards("models")["smollm2-grpo"])
    assert isinstance(card, AdapterCard)
    ((name, sha256),) = card.trained_on.items()
    file = Path(__file__).parents[2] / name
    assert sha256_file(file) == sha256
    practice = read_questions(file)
    assert len(practice) == 211 and all(question.metadata["split"] == "train" for question in practice)
    assert all(0.125 <= rate <= 0.75 for question in practice for rate in question.metadata["pass_rates"])
    if DATA:
        kept = [question for held in card.held_out for question in read_questions(Path(DATA) / held)]
        gold = {title for question in kept for title in question.gold_titles}
        assert len(gold) > 300 and not gold & {title for question in practice for title in question.gold_titles}
