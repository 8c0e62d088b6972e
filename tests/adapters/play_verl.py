"""Plays a script through verl: its `AgentLoopBase`, made by hydra as verl does, with a stand-in for its servers."""

import asyncio
from types import SimpleNamespace

import hydra
from omegaconf import OmegaConf
from scripts import QUESTION, Played
from token_host import LOGP, Scripted
from verl.experimental.agent_loop.agent_loop import DictConfigWrap

CONFIG = {"actor_rollout_ref": {"rollout": {"prompt_length": 1000, "response_length": 3000}}, "data": {}}


def play(env, script, folder):
    host = Scripted(env, script)

    class Servers:
        async def generate(self, request_id, prompt_ids, sampling_params):
            assert sampling_params["include_stop_str_in_output"]
            assert sampling_params["temperature"] == 0.7
            said = host.sample(prompt_ids, sampling_params["stop"], sampling_params["max_tokens"])
            return SimpleNamespace(token_ids=said, log_probs=[LOGP] * len(said))

    async def run():
        config = OmegaConf.create(CONFIG)
        loop = hydra.utils.instantiate(
            OmegaConf.create({"_target_": "searchgym.adapters.verl_loop.SearchGymLoop", "env": env, "options": {}}),
            trainer_config=DictConfigWrap(config),
            server_manager=Servers(),
            tokenizer=host.tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(config.data),
            hf_model_type="qwen2",
        )
        row = {"raw_prompt": [{"role": "user", "content": "?"}], "extra_info": {"question_id": QUESTION}}
        return await loop.run({"temperature": 0.7, "logprobs": True}, **row)

    output = asyncio.run(run())
    prompt = len(output.prompt_ids)
    assert prompt == len(host.prompts[0])
    host.check_sequence(
        output.prompt_ids + output.response_ids,
        [0] * prompt + output.response_mask,
        [0.0] * prompt + output.response_logprobs,
    )
    assert output.num_turns == 2 * len(script)
    told = output.extra_fields["reward_extra_info"]
    assert output.reward_score == told["reward"]
    assert output.as_dict()["rm_scores"].sum() == output.reward_score
    return Played(host.observations(), told)
