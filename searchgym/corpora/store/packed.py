"""Compresses the lines of a large corpus one by one, with a dictionary of what they have in common.

Each line is a Zstandard frame of its own, so that one can be read without the others. The whole file is restored by
``zstd -d -D passages.dictionary passages.jsonl.zst``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import zstandard

from searchgym.corpora.files import MAX_LINE

PACKED: Final = "passages.jsonl.zst"
"""File of compressed lines, one frame per line."""
DICTIONARY: Final = "passages.dictionary"
"""File of the dictionary that the frames need."""
PACK_FROM: Final = 32 << 20
"""Bytes of the first batch of lines from which a corpus is compressed; a smaller one stays readable."""
_FEWEST: Final = 1000  # lines that a dictionary is trained on
_SIZE: Final = 256 << 10  # bytes of the dictionary
_SAMPLE: Final = 16 << 20  # bytes of lines that the dictionary is trained on
_LEVEL: Final = 7  # of 22: 50 MB/s on one core


def is_packed(lines: Sequence[bytes]) -> bool:
    """Returns whether a corpus with this first batch of lines is compressed."""
    return len(lines) >= _FEWEST and sum(map(len, lines)) >= PACK_FROM


def train_dictionary(lines: Sequence[bytes]) -> bytes:
    """Returns a dictionary for lines like these, trained on a sample that is spread evenly over them."""
    step = max(1, min(sum(map(len, lines)) // _SAMPLE, len(lines) // _FEWEST))
    return zstandard.train_dictionary(_SIZE, list(lines[::step])).as_bytes()


class Packer:
    """Compresses lines.

    Args:
        dictionary: Dictionary, from `train_dictionary`.
    """

    def __init__(self, dictionary: bytes) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, dict_data=zstandard.ZstdCompressionDict(dictionary))

    def pack(self, lines: Sequence[bytes]) -> list[bytes]:
        """Returns the frame of each line; all processors share the work, without a trace in the result."""
        frames = self._compressor.multi_compress_to_buffer(list(lines), threads=-1)
        return [frames[i].tobytes() for i in range(len(frames))]


class Unpacker:
    """Restores lines. Several threads may share it.

    Args:
        folder: Folder that holds `DICTIONARY`.
    """

    def __init__(self, folder: Path) -> None:
        self._dictionary = zstandard.ZstdCompressionDict((folder / DICTIONARY).read_bytes())
        self._threads = threading.local()  # a decompressor may be used by one thread at a time

    def unpack(self, frame: bytes) -> bytes:
        """Returns the line of a frame.

        Raises:
            ValueError: It is no frame of this dictionary, or holds more than `MAX_LINE` bytes.
        """
        try:
            if not 0 <= zstandard.frame_content_size(frame) <= MAX_LINE:
                raise ValueError(f"a line of more than {MAX_LINE:,} bytes, or of unknown length")
            try:
                decompressor = self._threads.decompressor
            except AttributeError:
                decompressor = zstandard.ZstdDecompressor(dict_data=self._dictionary)
                self._threads.decompressor = decompressor
            return bytes(decompressor.decompress(frame))
        except zstandard.ZstdError as error:
            raise ValueError(f"not a compressed line: {error}") from error
