"""What the tests of all back ends share: one small corpus, queries of all kinds, and a card for each back end."""

from typing import Any

from searchgym.envs.cards import EnvCard
from searchgym.questions.sources.dataset import DatasetQuestions
from searchgym.records import Passage, Question
from searchgym.testing import hostile_queries

PAGES = """
Amsterdam|Amsterdam is the capital of the Netherlands. Its seventeenth-century canals were dug for trade by water.
Bergen|Bergen is a port on the west coast of Norway, known for rain and for the wooden houses of Bryggen.
Cape Verde|Cape Verde is a country of ten volcanic islands in the Atlantic Ocean, west of Senegal.
Danube|The Danube rises in the Black Forest, passes ten countries and ends in the Black Sea.
Emmy Noether|Emmy Noether was a mathematician who linked symmetries of physics with laws of conservation.
Fjord|A fjord is a long and narrow inlet of the sea between cliffs, cut by a glacier.
Gull|Gulls are seabirds of the family Laridae; most species live near the coast and eat almost anything.
Harpsichord|A harpsichord is a keyboard instrument whose strings are plucked, where a piano hammers them.
Ilmenite|Ilmenite is a black mineral, the main ore from which titanium is won.
Johannes Kepler|Johannes Kepler found that planets move on ellipses with the Sun in one focus.
Kimchi|Kimchi is a Korean dish of salted and fermented cabbage with chilli, garlic and ginger.
Lisbon earthquake of 1755|An earthquake and the waves that followed destroyed most of Lisbon on All Saints' Day.
Mary Anning|Mary Anning dug the first known ichthyosaur out of the cliffs of Lyme Regis.
Nile crocodile|The Nile crocodile is a reptile of African rivers that hunts antelope and zebra from the water.
Okapi|The okapi has striped legs as a zebra has, and is the nearest living relative of the giraffe.
Penicillin|Penicillin, an antibiotic won from mould, was found by Alexander Fleming in 1928.
Quinine|Quinine, from the bark of the cinchona tree, was the first remedy against malaria.
Rosetta Stone|The Rosetta Stone bears one decree in three scripts, by which hieroglyphs were read again.
Sourdough|Sourdough is bread raised by wild yeast and lactic acid bacteria.
Trans-Siberian Railway|The Trans-Siberian Railway runs from Moscow to Vladivostok, over nine thousand kilometres.
Uranus|William Herschel discovered the planet Uranus with a telescope that he had built himself.
Violin|The violin has four strings tuned in fifths, and is played with a bow of horse hair.
Water strider|Water striders are insects that walk on ponds, carried by surface tension.
Xylem|Xylem is the tissue that carries water from the roots of a plant to its leaves.
Yurt|A yurt is a round tent of felt, the home of herders on the steppes of Central Asia.
Zeppelin|A zeppelin is an airship with a rigid frame; the Hindenburg burned at Lakehurst in 1937.
Alexander Fleming|Alexander Fleming was a Scottish physician, honoured with the Nobel Prize in 1945.
Reykjavik|Reykjavik is the capital of Iceland; hot springs heat its houses.
Lyme Regis|Lyme Regis is a town in Dorset, at the foot of cliffs full of fossils.
Malaria|Malaria is a disease brought by mosquitoes; it kills some six hundred thousand people a year.
"""
ODD = [
    Passage("30", '"Heroes"', 'David Bowie sang "Heroes" in Berlin, beside the Wall.'),
    Passage("31", 'The "Golden" Hind', "Francis Drake sailed round the world in her,\nhome to Plymouth in 1580.\n"),
    Passage("Łódź/32 é", "Łódź", "Łódź is a city of textile mills in Poland \u2028 🏭; 東京 is elsewhere."),
    Passage("33", "Tern \ud800", "Terns fly from the Arctic to the Antarctic and back each year."),
    Passage("34", "Stub about pangolins", ""),
    Passage("35", "", "A page without a title tells how candles are dipped from beeswax."),
    Passage("36", "Saffron", "Saffron is the dried stigma of a crocus, picked by hand."),
    Passage("37", "Saffron", "Saffron is the dried stigma of a crocus, picked by hand."),
    Passage("38", "Saffron", "Saffron is the dried stigma of a crocus, picked by hand."),
    Passage("39", "", ""),
]
PASSAGES = [Passage(str(n), *line.split("|")) for n, line in enumerate(PAGES.strip().splitlines())] + ODD
"""40: three of them alike, one without a title, one without a text, one with neither."""

QUERIES = [
    "Which river ends in the Black Sea?",
    "Who discovered penicillin?",
    "zebra",
    "port on the coast",
    "dried stigma of a crocus",
    "remedy against a disease brought by mosquitoes",
    "keyboard instrument with plucked strings",
    "zebra zebra antelope",
    "Łódź 東京",
    "nothing of this kind: qwzx",
]
STOP_WORDS = "the of and is a"
ODD_QUERIES = hostile_queries("zebra") | {"stop words": STOP_WORDS}
TITLES = [page.title for page in PASSAGES[:35]]
"""Each of one passage."""
ABOVE = 100
"""More hits than there are passages; what a server gives at most."""

BM25 = {"kind": "bm25", "threads": 2}
LUCENE = {"kind": "lucene", "memory": "256m", "threads": 2}
FLAT = {"kind": "dense", "encoder": "minilm-package"}
IVF = FLAT | {"index": "ivf-sq8", "lists": 4, "nprobe": 4}
HNSW = FLAT | {"index": "hnsw"}
PARTS = {"bm25": BM25, "lucene": LUCENE, "dense": FLAT, "dense-2": IVF, "dense-3": HNSW}
"""By their folders."""
ALL = {"kind": "hybrid", "of": list(PARTS.values())}

CARDS: dict[str, dict[str, Any]] = {
    "bm25": BM25,
    "lucene": LUCENE,
    "flat": FLAT,
    "ivf-sq8": IVF,
    "hnsw": HNSW,
    "hybrid": {"kind": "hybrid", "of": [BM25, FLAT], "depth": 20},
    "rerank": {"kind": "rerank", "of": BM25, "encoder": "minilm-package", "first": 20},
    "no noise": {"kind": "noise", "of": BM25, "start": 0.0, "seed": 3},
    "all noise": {"kind": "noise", "of": BM25, "start": 1.0, "end": 1.0, "seed": 3},
    "cache": {"kind": "cache", "of": BM25, "size": 64},
    "recorded": {"kind": "recorded"},  # and where
    "retrieve": {"kind": "http", "schema": "retrieve"},
    "search": {"kind": "http", "schema": "search"},
    "tool": {"kind": "tool", "function": "test_conformance:tool", "calls": 2},
}
VARIANTS = [
    LUCENE | {"b": 0.75},
    HNSW | {"ef_search": 9},
    IVF | {"nprobe": 1},
    CARDS["hybrid"] | {"constant": 1},
    CARDS["hybrid"] | {"of": [FLAT, BM25]},
    CARDS["rerank"] | {"first": 5},
    CARDS["no noise"] | {"seed": 4},
    CARDS["cache"] | {"of": LUCENE},
]
"""The same back ends with other settings of searching."""

ENV = EnvCard(
    id="test/Conformance-v0",
    summary="a small environment for tests",
    questions=DatasetQuestions(dataset="test", split="all", size=1, file="small.json", get="here"),
    corpus="none",
)
QUESTIONS = [Question("q", "Who discovered penicillin?", ("Alexander Fleming",))]
