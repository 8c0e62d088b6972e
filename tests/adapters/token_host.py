"""A stand-in for another trainer's engine: it samples a script as token ids, and checks what it is asked."""

from searchgym.adapters.episodes import shared_task
from searchgym.adapters.hosts import token_format
from searchgym.rollout.loading import load_tokenizer

LOGP = -0.5


class Scripted:
    """Samples the texts of a script, one per request; keeps the prompts that it was given."""

    def __init__(self, env, script):
        self.tokenizer = load_tokenizer("tiny")
        self.form = token_format(self.tokenizer, shared_task(env).rules.protocol)
        self._left, self.prompts, self.sampled = iter(script), [], []

    def sample(self, ids, stop, most):
        assert list(stop) == list(self.form.stop)
        if self.prompts:  # what was sampled before stands there as it was sampled
            before = self.prompts[-1] + self.sampled[-1]
            assert ids[: len(before)] == before
        self.prompts.append(list(ids))
        text = next(self._left)
        sampled = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not text.endswith(tuple(stop)):
            sampled = [*sampled, next(iter(self.form.end_ids))]
        assert len(sampled) <= most
        self.sampled.append(sampled)
        return sampled

    def observations(self):
        """Texts between the responses, as the model saw them, without the marks of turns around them."""
        assert next(self._left, None) is None
        triples = zip(self.prompts, self.sampled, self.prompts[1:], strict=False)
        return [self._text(said, after[len(before) + len(said) :]) for before, said, after in triples]

    def _text(self, said, shown):
        ended = said[-1] in self.form.end_ids
        if ended or self.form.protocol.name == "tool_calls":
            slot, encode = self.form._slots["eos" if ended else "stop"], self.form._encoder.ids
            opening = [*slot.before, *encode([slot.left], [slot.position])[0]]
            again = [*encode([slot.right], ["inside"])[0], *slot.after]
            assert shown[: len(opening)] == opening
            assert shown[-len(again) :] == again
            shown = shown[len(opening) : -len(again)]
        return self.form.decode(shown)

    def check_sequence(self, ids, own, logp):
        """Compares a sequence of tokens with what was sampled, and what was not."""
        assert ids == self.prompts[-1] + self.sampled[-1]
        wanted = [0] * len(ids)
        for before, said in zip(self.prompts, self.sampled, strict=True):
            wanted[len(before) : len(before) + len(said)] = [1] * len(said)
        assert own == wanted
        assert logp == [LOGP * one for one in wanted]
