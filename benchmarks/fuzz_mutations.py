"""Damage to files, and attacks with them, for ``fuzz_files.py``: every change follows from a seeded generator."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

PLANTED = "planted"
"""Name of a module and a package in the folder of the files, which nothing may import."""
ODD: list[Callable[[], Any]] = [
    *(lambda value=value: value for value in (None, True, False, -1, 0, 1, 2, 10**9, 10**30, -(10**30))),
    *(lambda value=value: value for value in (1e308, float("nan"), float("inf"), -0.5, "", "x", " ", "\ud800", "\0")),
    *(lambda value=value: value for value in ("../../../etc/passwd", "/etc/passwd", "~", "NaN", "1e999", "ü" * 300)),
    *(
        lambda value=value: value
        for value in (f"package:{PLANTED}/x", f"{PLANTED}:run", "os:system", "subprocess:Popen")
    ),
    list,
    dict,
    lambda: [[]],
    lambda: [None],
    lambda: {"": None},
    lambda: {"kind": "dense"},
    lambda: "y" * 100_000,
    lambda: list(range(1000)),
    lambda: nested(50),
]
"""Values of unexpected types or sizes."""

Change = Callable[[Path, random.Random], None]


def nested(depth: int) -> list[Any]:
    """Returns lists inside each other."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# -- bytes ---------------------------------------------------------------------------------------------------------


def flip(file: Path, rng: random.Random) -> None:
    """Changes up to eight bytes."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 8)):
        if content:
            content[rng.randrange(len(content))] = rng.randrange(256)
    file.write_bytes(content)


def truncate(file: Path, rng: random.Random) -> None:
    """Cuts the end off."""
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content) + 1)])


def insert(file: Path, rng: random.Random) -> None:
    """Puts random bytes, or bytes of the file again, somewhere inside."""
    content = file.read_bytes()
    at = rng.randrange(len(content) + 1)
    piece = rng.randbytes(rng.randint(1, 64)) if rng.random() < 0.5 else content[: rng.randint(1, 4096)]
    file.write_bytes(content[:at] + piece + content[at:])


def replace(file: Path, rng: random.Random) -> None:
    """Replaces the file's content."""
    pieces = [b"", b"\n", b"{}", b"[]", b"null", b"\xff\xfe\0", b"\x1f\x8b", b"PAR1", b"\x93NUMPY", b"--- 1\n--- 2\n"]
    file.write_bytes(rng.choice([*pieces, b"\0" * 4096, rng.randbytes(200), b"[" * 100_000, b'{"a":' * 50_000]))


def remove(file: Path, rng: random.Random) -> None:
    """Removes the file, or makes it a folder."""
    file.unlink()
    if rng.random() < 0.5:
        file.mkdir()


def link(file: Path, rng: random.Random) -> None:
    """Makes the file a symbolic link: to itself, to nothing, to a device, or out of the folder."""
    file.unlink()
    file.symlink_to(rng.choice([file.name, "nothing", "/dev/zero", "/dev/null", "/proc/version", "..", "/"]))


BYTES: list[Change] = [flip, flip, truncate, insert, replace, remove, link]

# -- structure -----------------------------------------------------------------------------------------------------


def places(value: Any) -> list[tuple[Any, Any]]:
    """Returns every (container, key) inside plain data."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [pair for key, item in inner for pair in [(value, key), *places(item)]]


def change_value(value: Any, rng: random.Random) -> Any:
    """Returns plain data with one value replaced, left out, added, repeated or given another type."""
    found = places(value)
    if not found:
        return rng.choice(ODD)()
    container, key = rng.choice(found)
    kind = rng.randrange(6)
    if kind <= 2:
        container[key] = rng.choice(ODD)()
    elif kind == 3:
        old = container[key]
        container[key] = str(old) if not isinstance(old, str) else [old] if rng.random() < 0.5 else {old: old}
    elif kind == 4:
        del container[key]
    elif isinstance(container, list):
        container.extend([container[key]] * rng.choice([1, 7]))
    else:
        container[f"{key}_"] = container[key]
    return value


def change_json(file: Path, rng: random.Random) -> None:
    """Changes one value of a JSON document, or of one line."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines() if file.suffix == ".jsonl" else [text]
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(change_value(json.loads(lines[at]), rng))
    if rng.random() < 0.15 and lines[at].startswith("{"):  # a key that stands twice
        lines[at] = '{"id": 1, ' * (lines[at] != "{}") + lines[at][1:]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def change_yaml(file: Path, rng: random.Random) -> None:
    """Changes one value of a YAML document or of a front matter."""
    head, text, tail = parts(file)
    changed = change_value(yaml.safe_load(text), rng)
    file.write_text(head + yaml.safe_dump(changed, sort_keys=False) + tail, encoding="utf-8", errors="surrogatepass")


def change_array(file: Path, rng: random.Random) -> None:
    """Changes shape, type or numbers of an array."""
    array = np.load(file)
    kind = rng.randrange(7)
    if kind == 0 and array.size:
        array.flat[rng.randrange(array.size)] = rng.choice([-1, 0, 1, 127, 10**6, 2**31 - 1])
    elif kind == 1:
        array = array[: rng.randrange(len(array) + 1)]
    elif kind == 2:
        array = np.concatenate([array, array])
    elif kind == 3:
        array = array.astype(rng.choice(["float64", "int8", "<U3", "complex64", "bool", "int64", "float32", ">i8"]))
    elif kind == 4:
        array = np.asarray(array.reshape(-1)[0] if rng.random() < 0.5 else array.reshape(1, -1))
    elif kind == 5 and array.dtype.kind == "f":
        array.flat[rng.randrange(array.size)] = rng.choice([np.nan, np.inf, -np.inf, -1e30])
    else:
        array = np.zeros(0, array.dtype)
    np.save(file, array)


def change_archive(file: Path, rng: random.Random) -> None:
    """Changes what is inside a gzip file."""
    inner = file.with_suffix("")
    inner.write_bytes(gzip.decompress(file.read_bytes()))
    rng.choice([change_json, flip, truncate])(inner, rng)
    file.write_bytes(gzip.compress(inner.read_bytes()) + rng.choice([b"", b"", b"\0" * 9, b"garbage", b"\x1f\x8b"]))
    inner.unlink()


def change_tensors(file: Path, rng: random.Random) -> None:
    """Changes the header of a safetensors file."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length]
    if rng.random() < 0.3:
        length = rng.choice([0, 2**63, 2**40, length + 8, length - 1])
        file.write_bytes(length.to_bytes(8, "little") + content[8:])
        return
    header = json.dumps(change_value(json.loads(header), rng)).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])


def change_torch(file: Path, rng: random.Random) -> None:
    """Changes one value of a file of torch's."""
    import torch

    state = change_value(torch.load(file, weights_only=True), rng)
    torch.save(state, file)


STRUCTURE: dict[str, Change] = {
    ".json": change_json,
    ".jsonl": change_json,
    ".yaml": change_yaml,
    ".md": change_yaml,
    ".npy": change_array,
    ".gz": change_archive,
    ".safetensors": change_tensors,
    ".pt": change_torch,
}
"""Change by the suffix of a file."""

# -- attacks -------------------------------------------------------------------------------------------------------


class Touch:
    """Object whose unpickling makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.marker), "w")


def parts(file: Path) -> tuple[str, str, str]:
    """Returns a file's text before its YAML, the YAML, and the text after it."""
    text = file.read_text(encoding="utf-8")
    if not text.startswith("---\n"):
        return "", text, ""
    matter, _, rest = text[4:].partition("---\n")
    return "---\n", matter, "---\n" + rest


def yaml_attack(text: Callable[[str, Path], str]) -> Callable[[Path, random.Random, Path], None]:
    """Returns an attack that replaces the YAML of a file by ``text(old, marker)``."""

    def attack(file: Path, rng: random.Random, marker: Path) -> None:
        head, old, tail = parts(file)
        file.write_text(head + text(old, marker) + tail, encoding="utf-8")

    return attack


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(8)
)
"""Aliases of aliases: 0.3 kB that expand to 387 million values."""
YAMLS: dict[str, Callable[[str, Path], str]] = {
    "tag that calls": lambda old, marker: f"{old}summary: !!python/object/apply:builtins.open ['{marker}', 'w']\n",
    "tag alone": lambda old, marker: f"!!python/object/apply:os.system ['touch {marker}']\n",
    "tag that names": lambda old, marker: f"{old}x: !!python/name:os.system\n",
    "aliases of aliases": lambda old, marker: BOMB + old,
    "alias to itself": lambda old, marker: f"{old}x: &x [*x]\n",
    "merged aliases": lambda old, marker: "".join(
        f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9 if n else '')}]}}\n" for n in range(9)
    ),
    "date": lambda old, marker: f"{old}x: 2001-99-99\n",
    "number": lambda old, marker: f"{old}x: !!int abc\n",
    "tagged date": lambda old, marker: f"{old}x: !!timestamp soon\n",
    "tagged truth": lambda old, marker: f"{old}x: !!bool perhaps\n",
    "sixty": lambda old, marker: f"{old}x: {':59' * 5000}\nsteps: 1{':59' * 5000}\n",
    "long number": lambda old, marker: f"{old}x: {'9' * 6000}\n",
    "key of a list": lambda old, marker: f"{old}? [a, b]\n: c\n",
    "key of a tuple": lambda old, marker: f"{old}? !!python/tuple [a, b]\n: c\n",
    "deep": lambda old, marker: f"{old}x: {'[' * 20000}\n",
    "deep and closed": lambda old, marker: f"{old}x: {'[' * 2000}{']' * 2000}\n",
    "key twice": lambda old, marker: old + old,
    "many keys": lambda old, marker: old + "".join(f"k{n}: {n}\n" for n in range(20_000)),
    "two documents": lambda old, marker: f"{old}\n---\n{old}",
    "binary": lambda old, marker: f"{old}x: !!binary ====\ny: !!set {{a}}\nz: !!omap [a]\n",
    "number as a key": lambda old, marker: f"{old}1: 2\nnull: 3\n.nan: 4\n",
}
"""Texts by name, each made of (the old text, the marker)."""


def pickled(file: Path, rng: random.Random, marker: Path) -> None:
    """Replaces the file by a pickled object, bare or in an array of objects."""
    if rng.random() < 0.5 or file.suffix != ".npy":
        file.write_bytes(pickle.dumps(Touch(marker)))
    else:
        np.save(file, np.array([Touch(marker)], dtype=object), allow_pickle=True)


def torch_pickled(file: Path, rng: random.Random, marker: Path) -> None:
    """Replaces the file by a file of torch's with a pickled object."""
    import torch

    torch.save({"optimizer": Touch(marker), "version": 1}, file)


def bin_weights(file: Path, rng: random.Random, marker: Path) -> None:
    """Replaces safetensors by pickled weights."""
    import torch

    torch.save({"weight": Touch(marker)}, file.parent / "pytorch_model.bin")
    file.unlink()


def own_code(file: Path, rng: random.Random, marker: Path) -> None:
    """Adds code to a model's folder and names it in the configuration."""
    config = json.loads(file.read_text(encoding="utf-8"))
    names = {
        "AutoConfig": f"{PLANTED}.Config",
        "AutoModelForCausalLM": f"{PLANTED}.Model",
        "AutoTokenizer": [f"{PLANTED}.T", None],
    }
    config |= {"auto_map": names, "trust_remote_code": True}
    if rng.random() < 0.5:
        config |= {"model_type": PLANTED, "tokenizer_class": "T"}
    file.write_text(json.dumps(config), encoding="utf-8")


def encoder_of_folder(file: Path, rng: random.Random, marker: Path) -> None:
    """Makes an index's own card name an encoder, a function, a record or a server of the attacker's."""
    manifest = json.loads(file.read_text(encoding="utf-8"))
    model = rng.choice([f"package:{PLANTED}/x", "package:numpy/../../..", "../x", "./x", f"{PLANTED}:run"])
    encoder = {"name": "e", "model": model, "dimension": 8}
    own = manifest["retriever"]
    card = rng.choice([
        {"kind": "rerank", "of": own, "encoder": encoder},
        {"kind": "rerank", "of": own, "cross_encoder": model},
        {"kind": "hybrid", "of": [own, {"kind": "dense", "encoder": encoder}]},
        {"kind": "tool", "function": f"{PLANTED}:run"},
        {"kind": "recorded", "path": "/etc/passwd"},
        {"kind": "cache", "of": {"kind": "http", "url": "http://127.0.0.1:9"}},
    ])  # fmt: skip
    file.write_text(json.dumps(manifest | {"retriever": card}), encoding="utf-8")


def zip_bomb(file: Path, rng: random.Random, marker: Path) -> None:
    """Makes a small file of 2 GiB without a line break."""
    member = gzip.compress(rng.choice([b" ", b"[", b"a", b"\0"]) * 2**24, 6)
    file.write_bytes(member * 128)


def zip_of_zip(file: Path, rng: random.Random, marker: Path) -> None:
    """Compresses again, with a false size or another method."""
    content = gzip.compress(file.read_bytes())
    file.write_bytes(rng.choice([content, content[:-4] + b"\xff" * 4, content[:10] + zlib.compress(b"x"), content[:3]]))


def linked(file: Path, rng: random.Random, marker: Path) -> None:
    """Makes the file a symbolic link."""
    link(file, rng)


ATTACKS: list[tuple[str, Callable[[Path, random.Random, Path], None]]] = [
    ("*.npy", pickled),
    ("optimizer.pt", pickled),
    ("manifest.json", encoder_of_folder),
    ("*config.json", own_code),
    ("optimizer.pt", torch_pickled),
    ("*.gz", zip_bomb),
    *(("*.yaml", yaml_attack(text)) for text in YAMLS.values()),
    *(("*.md", yaml_attack(text)) for text in YAMLS.values()),
    ("*.safetensors", bin_weights),
    ("*.safetensors", pickled),
    ("*.gz", zip_of_zip),
    ("*", linked),
]
"""Pattern of the files, and what is done to one of them."""


def mutate(folder: Path, number: int, rng: random.Random, marker: Path) -> str:
    """Damages a folder of files, or attacks with it (every second of them); returns a description.

    Args:
        folder: Valid files, changed in place; code that must not run is added.
        number: Number of the file, which selects the attack in turn.
        rng: Random generator of the damage.
        marker: File that planted code creates if it runs.
    """
    code = f"open({str(marker)!r}, 'w')\nclass Config: pass\nclass Model: pass\nclass T: pass\ndef run(*a, **k): pass\n"
    (folder / PLANTED / "x").mkdir(parents=True)
    (folder / PLANTED / "__init__.py").write_text(code, encoding="utf-8")
    shutil.copy(folder / PLANTED / "__init__.py", folder / f"{PLANTED}.py")
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and PLANTED not in path.as_posix()[len(str(folder)) :]
    )
    possible = [(attack, found) for pattern, attack in ATTACKS if (found := [f for f in files if f.match(pattern)])]
    if number % 2:
        attack, found = possible[number // 2 % len(possible)]
        file = rng.choice(found)
        attack(file, rng, marker)
        return f"{attack.__name__} {number // 2 % len(possible)} of {file.relative_to(folder)}"
    said = []
    for _ in range(rng.choice([1, 1, 2])):
        whole = [file for file in files if file.is_file() and not file.is_symlink()]  # no link is written through
        if not whole:
            break
        file = rng.choice(whole)
        change = STRUCTURE.get(file.suffix, flip) if rng.random() < 0.6 else rng.choice(BYTES)
        try:
            change(file, rng)
        except Exception:
            flip(file, rng) if file.is_file() and not file.is_symlink() else None  # damaged before: its parts are gone
        said.append(f"{change.__name__} {file.relative_to(folder)}")
    return ", ".join(said)
