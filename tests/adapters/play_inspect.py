"""Plays a script through Inspect: its own `eval`, with a model that says the script."""

import inspect_ai
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from scripts import QUESTION, Played

from searchgym.adapters.inspect_evals import search


def play(env, script, folder, **options):
    seen, left = [], iter(script)

    def says(messages, tools, tool_choice, config):
        seen.append([message.text for message in messages])
        text = next(left)
        for stop in config.stop_seqs or ():  # as servers do, which leave the stop string out
            text = text.partition(stop)[0]
        output = ModelOutput.from_content("mockllm/model", text)
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else tiktoken is downloaded
        return output

    model = get_model("mockllm/model", custom_outputs=says)
    (log,) = inspect_ai.eval(
        search(env, **options), model=model, sample_id=QUESTION, display="none", log_dir=str(folder), log_samples=True
    )
    assert log.status == "success", log.error.message
    (sample,) = log.samples
    score = sample.scores["outcome"]
    assert next(left, None) is None
    texts = [message.text for message in sample.messages]
    assert texts[0] == seen[0][0]
    assert seen[-1] == texts[: len(seen[-1])]
    return Played(seen[-1][2::2], {**score.value, **score.metadata, "answer": score.answer})
