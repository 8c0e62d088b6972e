"""Analysis: golden tokens were made with Lucene's English analyser (pyserini 1.6.0) unless a comment says otherwise."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.retrieval.bm25 import analysis
from searchgym.retrieval.bm25.analysis import STOP_WORDS, analyse, terms_since

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
    ("नमस्ते हिन्दी עברית العربية مَرْحَبًا ١٢٣ étude", "नमस्ते हिन्दी עברית العربية مَرْحَبًا ١٢٣ étude"),
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


EQUIVALENT = [
    ("Beyonce\u0301 e\u0301tude", "beyoncé étude"),
    ("Beyonc\u00e9 \u00e9tude", "beyoncé étude"),
    ("\u212bngstro\u0308m \u2126 \u212a", "ångström ω k"),  # the signs of Ångström, Ohm and Kelvin
    ("\u1112\u1161\u11ab\u1100\u1173\u11af", "한글"),  # its letters one by one
    ("か\u3099 カ\u3099", "が ガ"),
    ("I\u0307stanbul \u0130stanbul", "istanbul istanbul"),
    ("J\u030c \u01f0", "\u01f0 \u01f0"),  # without a capital in one character
    ("a\u0323\u0302 a\u0302\u0323 \u1ead", "ậ ậ ậ"),
    ("\uf900", "豈"),
]


@pytest.mark.parametrize(("text", "tokens"), EQUIVALENT)
def test_equivalent_characters_give_one_term(text: str, tokens: str) -> None:
    """Unicode's standard annex 15: canonically equivalent texts are the same text; Lucene takes them as they come."""
    assert analyse(text) == tokens.split()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_form_of_a_text_does_not_matter(text: str) -> None:
    assert analyse(unicodedata.normalize("NFD", text)) == analyse(unicodedata.normalize("NFC", text)) == analyse(text)


@pytest.mark.parametrize(
    ("page", "query", "found"),
    [
        ("東は京", "東京", True),
        ("ハリーポッター", "ポッター", False),
        ("ハリー ポッター", "ポッター", True),
        ("서울은", "서울", False),
        ("ภาษาไทย", "ไทย", False),
        ("ภาษา ไทย", "ไทย", True),
        ("café", "cafe", False),
        ("ＡＢＣ", "ABC", False),
        ("ﬁne", "fine", False),
        ("Beyonce\u0301", "Beyonc\u00e9", True),
    ],
)
def test_what_the_page_says_of_languages(page: str, query: str, found: bool) -> None:
    """As docs/do/indexes.md says: a query finds a page if all its terms are there."""
    assert (set(analyse(query)) <= set(analyse(page))) == found


def test_compatible_characters_stay_different() -> None:
    assert analyse("ＡＢＣ ﬁne ½") == ["ａｂｃ", "ﬁne"]


@given(st.text(st.characters(exclude_categories=[])))
def test_the_version_of_a_texts_terms_is_the_first_that_has_them(text: str) -> None:
    before = [analysis._term(word) for word in analysis._WORD.findall(analysis._lower(text))]
    if terms_since(text) == 1 and max(map(len, before), default=0) < 255:
        assert analyse(text) == [term for term in before if term]


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


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "piece",
    ["a", "_", "'", "a.", "1:", "\u0301", "_\u0301", "a:_", "_1", "\ud800", "\x00", "'s ", "中", "カ_", "😀\u200d"],
)
def test_a_megabyte_of_anything_takes_linear_time(piece: str) -> None:
    terms = analyse(piece * (1_000_000 // len(piece)))  # quadratic work here would take hours
    assert len(terms) <= 1_000_000


def test_repeats_and_order_are_kept() -> None:
    assert analyse("Cats saw a cat; cats!") == ["cat", "saw", "cat", "cat"]
