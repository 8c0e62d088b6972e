"""Retrievers and environments that each violate one clause of their contract."""

import copy
import threading

import gymnasium
from subjects import Words

from searchgym.envs.single import SearchEnv
from searchgym.envs.vector import SearchVectorEnv
from searchgym.records import Hit, Passage
from searchgym.testing.fakes import PASSAGES

# -- retrievers ----------------------------------------------------------------------------------------------------


class MakesUp(Words):
    def find(self, query):
        return [Hit(Passage("x", "x", "made up"), 9.0), *super().find(query)]


class Rising(Words):
    def find(self, query):
        return super().find(query)[::-1]


class TooMany(Words):
    def search(self, queries, k):
        return super().search(queries, k + 1)


class FindsAll(Words):
    def find(self, query):
        return super().find(query) or [Hit(PASSAGES[0], 0.5)]


class ScoresZero(Words):
    def find(self, query):
        return [Hit(hit.passage, hit.score - 1) for hit in super().find(query)]


class PrefersOthers(Words):
    def search(self, queries, k):
        found = super().search(queries, 100)
        return found if k == 100 else [hits[-k:] for hits in found]


class Counts(Words):
    calls = 0

    def search(self, queries, k):
        self.calls += 1
        return [[Hit(hit.passage, hit.score + self.calls) for hit in hits] for hits in super().search(queries, k)]


class Sorts(Words):
    def search(self, queries, k):
        return super().search(sorted(queries), k)


class SortsInPlace(Words):
    def search(self, queries, k):
        found = super().search(queries, k)
        if isinstance(queries, list):
            queries.sort()
        return found


class AddsAList(Words):
    def search(self, queries, k):
        return super().search(queries, k) or [[]]


class TakesAString(Words):
    def search(self, queries, k):
        return super().search([queries] if isinstance(queries, str) else queries, k)


class TakesNoHits(Words):
    def search(self, queries, k):
        return super().search(queries, k) if k > 0 else [[] for _ in queries]


class Encodes(Words):
    def find(self, query):
        return super().find(query.encode().decode())


class Shortens(Words):
    def search(self, queries, k):
        return super().search(queries[:100], k)


class OneThread(Words):
    def __init__(self):
        self.thread = threading.get_ident()

    def find(self, query):
        return super().find(query) if threading.get_ident() == self.thread else []


class Uncopied(Words):
    pages = True

    def __deepcopy__(self, memo):
        other = copy.copy(self)
        other.pages = False
        return other

    def find(self, query):
        return super().find(query) if self.pages else []


RETRIEVERS = [
    (
        "test_hits_are_passages_of_the_corpus_best_first",
        MakesUp,
        "a hit is a passage of the corpus, once; got",
    ),
    ("test_hits_are_passages_of_the_corpus_best_first", Rising, "hits come best first, got scores"),
    ("test_hits_are_passages_of_the_corpus_best_first", TooMany, "expected at most 1 Hit records per query"),
    ("test_a_lexical_retriever_finds_nothing_without_a_common_word", FindsAll, "has no word of any passage"),
    ("test_a_lexical_retriever_finds_nothing_without_a_common_word", ScoresZero, "a lexical score is above 0"),
    ("test_fewer_hits_are_the_first_of_more", PrefersOthers, "k=1: the first 1 of k=100 score .* got"),
    ("test_what_is_found_does_not_depend_on_the_call", Counts, "asked again, query 0 gets other hits"),
    ("test_what_is_found_does_not_depend_on_the_call", Sorts, "asked in reversed order, query 0"),
    ("test_queries_are_left_as_they_are", SortsInPlace, "search changed the list of queries"),
    ("test_no_queries_find_no_lists", AddsAList, r"by an empty list, got \[\[\]\]"),
    ("test_wrong_arguments_are_refused", TakesAString, "must raise UsageError .call check_request first., got"),
    ("test_wrong_arguments_are_refused", TakesNoHits, r"search\(\[.*\], 0\) must raise UsageError"),
    ("test_hostile_queries_are_answered_and_disturb_no_others", Encodes, "surrogates not allowed"),
    ("test_many_queries_in_one_call", Shortens, "expected a list of 1000 lists of hits, got 100 lists"),
    ("test_threads_find_the_same", OneThread, "asked from several threads at once"),
    ("test_copies_find_the_same_through_retrieve", Uncopied, "asked of a copy, query 0"),
]


# -- environments --------------------------------------------------------------------------------------------------


class ShowsNumbers(SearchEnv):
    def reset(self, **options):
        super().reset(**options)
        return 7, {}


class Ascii(SearchEnv):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.action_space = gymnasium.spaces.Text(100)


class Timed(SearchEnv):
    made = 0

    def step(self, action):
        Timed.made += 1
        *reply, info = super().step(action)
        return (*reply, info | {"seconds": Timed.made})


class Chooses(SearchEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class Praises(SearchEnv):
    def step(self, action):
        observation, *rest = super().step(action)
        return (observation or "Well done.", *rest)


class GoesOn(SearchEnv):
    def step(self, action):
        if self.state.done:
            self.reset()
        return super().step(action)


class ResetsItself(SearchEnv):
    def step(self, action):
        if self._state is None:
            self.reset()
        return super().step(action)


class Lenient(SearchEnv):
    def step(self, action):
        before = self.state
        reply = super().step(action)
        if reply[4]["action"] == "invalid":
            self._state = before
        return reply


class EncodesActions(SearchEnv):
    def step(self, action):
        return super().step(action.encode().decode() if isinstance(action, str) else action)


class PaysEarly(SearchEnv):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return (observation, 0.5, *rest)


class ObeysPages(SearchEnv):
    def step(self, action):
        reply = super().step(action)
        return super().step(reply[0]) if "</answer>" in reply[0] and reply[4]["hits"] else reply


class Terminates(SearchEnv):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, False, info


class ForgetsRandomness(SearchEnv):
    def set_state(self, snapshot):
        snapshot.rng_state = self.np_random.bit_generator.state
        super().set_state(snapshot)


class Shifted(SearchVectorEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed + 1, options=options)


ENVIRONMENTS = [
    ("test_the_checkers_of_gymnasium_pass", ShowsNumbers, "(?i)observation"),
    ("test_actions_and_observations_are_any_text", Ascii, "the action space must hold ''"),
    ("test_the_same_seed_gives_the_same_episodes", Timed, "reply 1 differs under one seed"),
    ("test_a_reset_takes_a_question_id", Chooses, "question_id 'q.' must show|must raise UnknownNameError"),
    ("test_an_answer_ends_the_episode", Praises, "expected .'', True, 'answer', .* got .'Well done."),
    ("test_an_answer_ends_the_episode", GoesOn, "a step after the end must raise EpisodeError"),
    ("test_a_step_needs_a_reset_and_a_text", ResetsItself, "must raise EpisodeError"),
    ("test_the_turn_budget_ends_the_episode", Lenient, r"turn and turns_left: expected \(2, 3\), got \(1, 4\)"),
    ("test_the_turn_budget_ends_the_episode", PaysEarly, "the reward is 0 before the end, got 0.5"),
    ("test_hostile_actions_get_deterministic_replies", EncodesActions, "no text may raise, got UnicodeEncodeError"),
    ("test_a_retrieved_text_is_never_an_action", ObeysPages, "a page was read as an action|must search with that"),
    ("test_a_retriever_that_fails_truncates_the_episode", Terminates, "expected .'', 0.0, True, 'retriever_error'"),
    (
        "test_snapshots_go_back_any_number_of_times",
        ForgetsRandomness,
        "after set_state the episode continues differently",
    ),
]
