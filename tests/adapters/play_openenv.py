"""Plays a script through OpenEnv: its server behind uvicorn, its client over a WebSocket."""

import contextlib
import threading

import uvicorn
from scripts import QUESTION, Played

from searchgym.adapters.openenv_client import SearchAction, SearchGymClient
from searchgym.adapters.openenv_server import make_app


@contextlib.contextmanager
def served(env, **options):
    """Serves an environment on a free port; yields the address."""
    server = uvicorn.Server(uvicorn.Config(make_app(env, **options), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


def play(env, script, folder):
    with served(env) as address, SearchGymClient(base_url=address).sync() as client:
        result = client.reset(question_id=QUESTION)
        assert "When was the founder of Beta born?" in result.observation.text
        observations = []
        for text in script:
            assert not result.done
            result = client.step(SearchAction(text=text))
            observations.append(result.observation.text)
        assert result.done
        state = client.state()
        assert (state.step_count, state.question_id) == (len(script), QUESTION)
    assert observations.pop() == ""
    assert result.reward == result.observation.info["reward"]
    return Played(observations, result.observation.info)
