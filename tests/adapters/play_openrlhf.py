"""Plays a script through OpenRLHF: its own loader of executors, with a stand-in for its vLLM engine."""

import asyncio
from types import SimpleNamespace

from scripts import QUESTION, Played
from token_host import LOGP, Scripted

from searchgym.adapters.openrlhf_agent import agent_executor


def play(env, script, folder):
    host = Scripted(env, script)

    class Engine:
        async def generate(self, ids, params):
            assert params.include_stop_str_in_output
            assert params.temperature == 0.7
            said = host.sample(ids, params.stop, params.max_tokens)
            rows = [{i: SimpleNamespace(logprob=LOGP)} for i in said]
            return SimpleNamespace(outputs=[SimpleNamespace(token_ids=said, logprobs=rows)])

    params = SimpleNamespace(temperature=0.7, logprobs=1, max_tokens=100, stop=[])
    record = asyncio.run(agent_executor(env)().execute("asked", QUESTION, params, 4000, host.tokenizer, Engine()))
    assert params.stop == []
    assert (record["prompt"], record["label"]) == ("asked", QUESTION)
    own = [0] * len(record["observation_tokens"])
    for start, end in record["action_ranges"]:
        own[start:end] = [1] * (end - start)
    host.check_sequence(record["observation_tokens"], own, record["rollout_log_probs"])
    logs = record["extra_logs"]
    # numbers alone go into OpenRLHF's logs
    stop = "retriever_error" if logs["retriever_error"] else "answer" if "answer" in script[-1] else "turns"
    answer = script[-1].removeprefix("<answer>").removesuffix("</answer>") if stop == "answer" else ""
    told = {**logs, "reward": record["reward"], "stop_reason": stop, "answer": answer}
    return Played(host.observations(), told)
