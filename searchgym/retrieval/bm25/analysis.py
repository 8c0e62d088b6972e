"""Text analysis for BM25, which turns a passage or query into index terms as Lucene's English analyser does.

The chain is pyserini's default: StandardTokenizer (word boundaries of Unicode's UAX #29), removal of the English
possessive, lower case, removal of Lucene's 33 English stop words, Porter stemmer. Known differences from Lucene, all
rare: quotes in Hebrew words separate, an emoji sequence is cut into its emoji, some pictographs are not words, and
Python and Lucene have different Unicode versions. One difference is intended: canonically equivalent characters, such
as é in one character and e with an accent after it, are the same here (Unicode's normal form C, on both sides).
"""

from __future__ import annotations

import functools
import itertools
import re
import threading
import unicodedata
from typing import Final

import Stemmer

NAME: Final = "lucene-english-porter"
"""Name of the analyser, written into every index."""
VERSION: Final = 2
"""Version of the analyser, incremented whenever `analyse` changes its result for any text.

An index built with another version is refused; that of version 0.1.0 is built again in memory.
"""

_STOP_WORDS: Final = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())
"""Lucene's English stop words (`EnglishAnalyzer.ENGLISH_STOP_WORDS_SET`)."""

_MAX_TOKEN: Final = 255  # characters: StandardTokenizer cuts a longer word into pieces of this length

# Members of character classes, in regular expression syntax, that do not follow from Unicode's general categories.
_BETWEEN_LETTERS: Final = ":\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a"  # MidLetter
_BETWEEN_DIGITS: Final = ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"  # MidNum
_BETWEEN_BOTH: Final = ".'\u2018\u2019\u2024\ufe52\uff07\uff0e"  # MidNumLet and the single quote
_CONNECTORS: Final = "_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f"  # ExtendNumLet
_LETTERS: Final = (  # ALetter besides the letter categories
    "\u02c2-\u02c5\u02d2-\u02d7\u02de\u02df\u02ed\u02ef-\u02ff\u055b\u055c\u055e\u05f3\u24b6-\u24e9\ua708-\ua716"
    "\ua720\ua721\ua789\ua78a\uab5b\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189"
)
_DIGITS: Final = "\u066b"  # Numeric besides Nd
_EXTENDERS: Final = "\uff9e\uff9f\U000e0001-\U000e01ef"  # Extend and Format besides marks and format characters
_SINGLES: Final = (  # Han, Hiragana and pictographs: every character is a word
    "\xa9\xae\u203c\u2049\u2122\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716\u2728"
    "\u2744\u2763-\u2767\u27a1\u2b50\U0001f000-\U0001f0ff\U0001f300-\U0001f3fa\U0001f400-\U0001f53d"
    "\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f900-\U0001f9ff\U0001fa70-\U0001faff"
    "\u2e80-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3041-\u3096\u309d-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U0001b001-\U0001b11f\U00020000-\U000323af"
)
_KATAKANA: Final = (
    "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u32d0-\u32fe\u3300-\u3357\uff66-\uff9d"
)
_UNSPACED: Final = (  # South East Asian scripts, written without spaces: a run is a word
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3\u17d7"
    "\u17dc\u17dd\u1950-\u19c9\u1a20-\u1aad\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaac2\uaadb-\uaadf"
)
_CATEGORIES: Final = (
    dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl"), "letter")
    | {"Nd": "digit"}
    | dict.fromkeys(("Mn", "Mc", "Me", "Cf"), "extender")
)


def _word_pattern() -> re.Pattern[str]:
    """Compiles the word boundary rules of UAX #29, with possessive quantifiers only, so that time stays linear."""
    other_rule = re.compile(f"[{_SINGLES}{_KATAKANA}{_UNSPACED}{_EXTENDERS}\u200b]")

    def kind(code: int) -> str:
        name = _CATEGORIES.get(unicodedata.category(chr(code)), "")
        return "" if name and other_rule.match(chr(code)) else name

    classes = {"letter": _LETTERS, "digit": _DIGITS, "extender": _EXTENDERS}
    for name, run in itertools.groupby(range(0x20000), kind):  # higher code points are Han or in _EXTENDERS
        if name:
            codes = list(run)
            classes[name] += f"{chr(codes[0])}-{chr(codes[-1])}"
    letter, digit, extend = classes["letter"], classes["digit"], f"[{classes['extender']}]*+"
    letters, digits = f"[{letter}][{letter}{classes['extender']}]*+", f"[{digit}][{digit}{classes['extender']}]*+"
    letters = f"{letters}(?:[{_BETWEEN_LETTERS}{_BETWEEN_BOTH}]{extend}{letters})*+"
    digits = f"{digits}(?:[{_BETWEEN_DIGITS}{_BETWEEN_BOTH}]{extend}{digits})*+"
    return re.compile(
        r"(?=[^ \n.,()\"\-])(?:"  # skips quickly over characters that begin no word
        r"[a-z0-9]++(?=[.,]?+[ \n()\-])"  # matches most words quickly
        f"|(?:(?<![{_CONNECTORS}{classes['extender']}])(?:[{_CONNECTORS}]{extend})++)?+"  # a run is tried only once
        f"(?:{letters}|{digits})(?:[{_CONNECTORS}]{extend}|{letters}|{digits})*+"
        f"|[{_KATAKANA}](?:[{_KATAKANA}{_CONNECTORS}]{extend})*+"
        f"|[{_UNSPACED}](?:[{_UNSPACED}]{extend})*+"
        f"|[{_SINGLES}]{extend})"
    )


_WORD: Final = _word_pattern()
_POSSESSIVES: Final = ("'s", "\u2019s", "\uff07s")
_STEMMER: Final = Stemmer.Stemmer("porter", 0)
_STEMMER_LOCK: Final = threading.Lock()  # a Stemmer may be used by one thread at a time


# Lucene's Porter stemmer is its author's Java version, which differs from the paper and from Snowball's "porter" in
# step 2: any -bli becomes -ble and -logi becomes -log, if the stem before it has a measure above 0, that is, a vowel
# followed somewhere by a consonant (y is a vowel after a consonant).
_DEPARTURE: Final = re.compile(r"(.+?)(bl|log)(?:ys?|is?|ies)")
_MEASURED: Final = re.compile(r"[aeiou][^aeiou]|[^aeiouy]y[^aeiou]")


@functools.lru_cache(maxsize=1 << 18)
def _term(word: str) -> str:
    """Returns the index term of a lower-case word: the stem by Lucene's PorterStemFilter; empty for a stop word."""
    if word.endswith(_POSSESSIVES):
        word = word[:-2]
    if word in STOP_WORDS:
        return ""
    if len(word) <= 2:
        return word
    match = _DEPARTURE.fullmatch(word)
    if match and _MEASURED.search(match[1]):
        word = match[1] + ("ble" if match[2] == "bl" else "log")
    with _STEMMER_LOCK:
        return str(_STEMMER.stemWord(word))


def _lower(text: str) -> str:
    """Returns a text in Java's lower case.

    Java converts each character separately, without Python's final sigma and its two-character result for "İ".
    """
    return text.replace("\u0130", "i").replace("\u03a3", "\u03c3").lower()


def _lower_composed(text: str) -> str:
    """Returns a text in lower case and in normal form C; lower case may take a text out of that form."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", _lower(unicodedata.normalize("NFC", text)))


def terms_since(text: str) -> int:
    """Returns the version of the analyser since which a text has the terms that it has now."""
    return 1 if text.isascii() or _lower_composed(text) == _lower(text) else 2


def analyse(text: str) -> list[str]:
    """Returns the index terms of a text in order, repeats included.

    Args:
        text: Any string; lone surrogates and control characters separate words.

    Returns:
        Lower-case stems; empty if the text holds only stop words or no word at all.
    """
    words = _WORD.findall(_lower_composed(text))
    if max(map(len, words), default=0) > _MAX_TOKEN:
        words = [word[i : i + _MAX_TOKEN] for word in words for i in range(0, len(word), _MAX_TOKEN)]
    return [term for word in words if (term := _term(word))]
