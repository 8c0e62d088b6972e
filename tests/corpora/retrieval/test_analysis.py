"""Analysis: golden tokens were made with Lucene's English analyser (pyserini 1.6.0) unless a comment says otherwise."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.corpora.retrieval.bm25.analysis import STOP_WORDS, analyse

LUCENE = [
    (
        "state-of-the-art O'Neil's dogs' U.S.A. C++ C# 3.14 1,000,000 1.2.3.4 a_b foo@bar.com http://www.x.org/a?b=c",
        "state art o'neil dog u.s.a c c 3.14 1,000,000 1.2.3.4 a_b foo bar.com http www.x.org b c",
    ),
    (
        "AC/DC rock'n'roll l'été naïve Ünïcode İstanbul ΟΔΥΣΣΕΥΣ",
        "ac dc rock'n'rol l'été naïv ünïcode istanbul οδυσσευσ",
    ),
    ("he:said a:b 3:45 1:2 a;b 1;2 don’t it‘s ’tis A’S x's's", "he:said a:b 3 45 1 2 b 1;2 don’t it‘ ti x'"),
    ("a'b'c' 'quoted' \"word\" a.b. .a a..b 1..2 1.a 1,a 3'4 a'1", "a'b'c quot word a.b b 1 2 1 1 3'4 1"),
    ("i.e., e.g. Mr. No.1 v2.0 2.0v R&B AT&T x-y 10–20 1990s 90's", "i. e.g mr 1 v2.0 2.0v r b t x y 10 20 1990 90 s"),
    ("___ _a_ a__b _1_ \u203fx a·b x׳y 1٫2 1٬2", "_a_ a__b _1_ \u203fx a·b x׳y 1٫2 1٬2"),
    ("½ m² x³ ① Ⅷ 10½ a½b ª º ʻOkina Hawaiʻi Qur`an Qur´an", "m x ⅷ 10 b ª º ʻokina hawaiʻi qur qur"),
    (
        "東京都 ひらがな カタカナ 한국어 ไทยภาษา abcไทย 中a文",
        "東 京 都 ひ ら が な カタカナ 한국어 ไทยภาษา abc ไทย 中 文",
    ),
    ("नमस्ते हिन्दी עברית العربية مَرْحَبًا ١٢٣ e\u0301tude", "नमस्ते हिन्दी עברית العربية مَرْحَبًا ١٢٣ e\u0301tud"),
    ("soft\u00adhyphen zero\u200bwidth zwj\u200djoin nbsp\u00a0z", "soft\u00adhyphen zero width zwj\u200djoin nbsp z"),
    ("™ © ★ 😀 hello😀world B♭ 20°C", "™ © ★ 😀 hello 😀 world b ♭ 20 c"),
    ("A\x00B\x00 c\td\ne\rf", "b c d e f"),
    ("ǅabc ﬁne ß ẞ ſ ＡＢＣ １．２ ᎠᎡ", "ǆabc ﬁne ß ß ſ ａｂｃ １．２ ꭰꭱ"),
    ("The and THE And It's The's this' there's", ""),
    (
        "biology biological psychology psychological possibly apology theology assembly ably bly nobly trilogy",
        "biologi biolog psycholog psycholog possibl apolog theologi assembl abli bly nobli trilogi",
    ),
    (
        "caresses ponies ties cats feed agreed plastered motoring sing",
        "caress poni ti cat feed agre plaster motor sing",
    ),
    ("relational conditional rational valenci digitizer vietnamization", "relat condit ration valenc digit vietnam"),
]


@pytest.mark.parametrize(("text", "tokens"), LUCENE)
def test_tokens_are_lucenes(text: str, tokens: str) -> None:
    assert analyse(text) == tokens.split()


def test_there_are_33_stop_words_and_none_is_a_term() -> None:
    assert len(STOP_WORDS) == 33
    assert analyse(" ".join(STOP_WORDS)) == []


def test_a_long_word_is_cut_as_lucene_cuts_it() -> None:
    assert [len(term) for term in analyse("x" * 300 + " " + "y" * 600 + "z")] == [255, 45, 255, 255, 91]


@given(st.text(st.characters(exclude_categories=[])))
def test_any_string_gives_plain_terms(text: str) -> None:
    for term in analyse(text):
        assert term and len(term) <= 255
        assert not any(unicodedata.category(character) in ("Cs", "Cc") for character in term)


@pytest.mark.parametrize(
    "piece",
    ["a", "_", "'", "a.", "1:", "\u0301", "_\u0301", "a:_", "_1", "\ud800", "\x00", "'s ", "中", "カ_", "😀\u200d"],
)
def test_a_megabyte_of_anything_takes_linear_time(piece: str) -> None:
    terms = analyse(piece * (1_000_000 // len(piece)))  # quadratic work here would take hours
    assert len(terms) <= 1_000_000


def test_repeats_and_order_are_kept() -> None:
    assert analyse("Cats saw a cat; cats!") == ["cat", "saw", "cat", "cat"]
