"""Files of dumps: each way to write one gives the same samples, and what cannot be read is one clear error."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from dumped import clean, fields_of, write
from support import command_line

from searchgym.errors import DataError, DataMissingError, UnknownNameError, UsageError
from searchgym.testing.dumps.run import Claims, check_dump


@pytest.fixture
def run(monkeypatch, capsys):
    return command_line(monkeypatch, capsys)


@pytest.fixture
def verl():
    return fields_of("verl", clean("verl"))


def line_of(error):
    """Returns the message of an error, which is one line."""
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".pt", ".npz", ".safetensors"])
def test_each_way_to_write_a_dump_gives_the_same(suffix, verl, tmp_path):
    path = tmp_path / f"dump{suffix}"
    if suffix == ".safetensors":
        from safetensors.numpy import save_file

        verl = {name: value for name, value in verl.items() if isinstance(value, np.ndarray)}
        save_file(verl, path)
    elif suffix == ".json":
        write(path.with_suffix(".jsonl"), verl).rename(path)
    else:
        write(path, verl)
    verl["response_mask"][3] = 0
    report = check_dump(path, "verl")
    assert report.findings == [] and report.checked["masks"].startswith("8 samples")


def test_several_batches_name_their_rows(verl, tmp_path):
    other = fields_of("verl", clean("verl"))
    other["response_mask"][1] = 0
    path = tmp_path / "dump.jsonl"
    lines = [write(tmp_path / "one.jsonl", fields).read_text() for fields in (verl, other)]
    path.write_text("\n".join(lines))
    assert [finding.sample for finding in check_dump(path, "verl").findings] == ["line 3, row 2"]


def test_code_in_a_file_is_not_run(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (open, (str(tmp_path / "harmed"), "w"))

    import torch

    torch.save({"responses": Harmful()}, tmp_path / "dump.pt")
    np.savez(tmp_path / "dump.npz", responses=np.array([Harmful()], object))
    (tmp_path / "dump.pkl").write_bytes(pickle.dumps(Harmful()))
    for name in ("dump.pt", "dump.npz", "dump.pkl"):
        with pytest.raises(DataError) as error:
            check_dump(tmp_path / name, "verl")
        assert name in line_of(error)
    assert not (tmp_path / "harmed").exists()


def test_half_a_file(verl, tmp_path):
    for suffix in (".jsonl", ".pt", ".npz"):
        path = write(tmp_path / f"dump{suffix}", verl)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(DataError, match=r"dump.jsonl:1: not one JSON object|: half a file"):
            check_dump(path, "verl")


def test_lines_have_numbers(tmp_path):
    lines = fields_of("prime-rl", clean("prime-rl"))
    lines[4]["token_ids"] = "text"
    with pytest.raises(DataError, match=r"dump.jsonl:5: fields of another shape than those of prime-rl 0.8.0"):
        check_dump(write(tmp_path / "dump.jsonl", lines), "prime-rl")
    (tmp_path / "cut.jsonl").write_text(json.dumps(lines[0]) + "\n" + json.dumps(lines[1])[:-9])
    with pytest.raises(DataError, match=r"cut.jsonl:2: not one JSON object"):
        check_dump(tmp_path / "cut.jsonl", "prime-rl")


def test_a_field_that_is_missing_or_of_another_version_is_named(verl, tmp_path):
    def refused(fields, name="verl"):
        with pytest.raises(DataError) as error:
            check_dump(write(tmp_path / "dump.jsonl", fields), name)
        return line_of(error)

    renamed = {("response" if name == "responses" else name): value for name, value in verl.items()}
    assert "not the fields of verl 0.9.1: no field 'responses', but 'response'" in refused(renamed)
    renamed = {("rollout_logprob" if name == "rollout_log_probs" else name): value for name, value in verl.items()}
    assert "unknown field 'rollout_logprob', near 'rollout_log_probs'" in refused(renamed)
    del verl["response_mask"]
    assert "no field 'response_mask'" in refused(verl)
    assert "no field 'completion_ids'" in refused(fields_of("verl", clean("verl")), "trl")
    old = {"prompt_ids": [1], "prompt_mask": [0], "completion_ids": [2], "completion_mask": [1], "advantage": 0.5}
    assert "no field 'token_ids'" in refused([old], "prime-rl")
    assert "dump the DataProto" in refused({"input": "a", "output": "b", "score": 1.0, "step": 3})


def test_fields_of_others_are_told_and_read_past(verl, tmp_path):
    verl["acc"], verl["num_turns"] = [1] * 8, [2] * 8
    report = check_dump(write(tmp_path / "dump.jsonl", verl), "verl")
    assert report.findings == [] and {"acc", "num_turns"} <= set(report.unchecked["other fields"].split(", "))


def test_what_no_command_can_check(verl, tmp_path):
    path = write(tmp_path / "dump.jsonl", verl)
    with pytest.raises(UnknownNameError, match="did you mean 'verl'"):
        check_dump(path, "ver")
    with pytest.raises(UnknownNameError, match="did you mean 'rloo'"):
        check_dump(path, "verl", Claims(estimator="rlo"))
    with pytest.raises(UsageError, match="--adapter needs --model"):
        check_dump(path, "verl", Claims(adapter="x"))
    with pytest.raises(UsageError, match="temperatures above 0"):
        check_dump(path, "verl", Claims(temperature=0.0))
    with pytest.raises(DataMissingError, match="no such file"):
        check_dump(tmp_path / "no.jsonl", "verl")
    for name, text in (("empty.jsonl", ""), ("blank.jsonl", "\n"), ("list.json", "[]"), ("number.json", "3")):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=name):
            check_dump(tmp_path / name, "verl")


def test_a_format_of_the_users(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from searchgym.testing.dumps.form import DumpFormat\n"
        "from searchgym.testing.dumps.sample import dumped_sample\n"
        "@dataclass(frozen=True, slots=True, kw_only=True)\n"
        "class Mine(DumpFormat):\n"
        "    version, required, estimators = 'mine 1', ('ids', 'mask'), {}\n"
        "    def rows(self, batch):\n"
        "        yield dumped_sample(batch.name, batch.fields['ids'], batch.fields['mask'])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = write(tmp_path / "dump.jsonl", [{"ids": [1, 2], "mask": [0, 1]}, {"ids": [1, 2], "mask": [0, 0]}])
    assert [finding.sample for finding in check_dump(path, "mine:Mine").findings] == ["line 2"]


def test_the_command_prints_findings_and_what_it_left_out(run, verl, tmp_path):
    path = write(tmp_path / "dump.jsonl", verl)
    status, out, err = run("check-dump", path, "--format", "verl", "--estimator", "grpo")
    assert status == 0 and "no findings" in out and err == ""
    assert "8 samples in 2 groups, by grpo" in out and "not checked: name a tokenizer" in " ".join(out.split())
    verl["uid"][2] = "alone"
    write(path, verl)
    status, out, _ = run("check-dump", path, "--format", "verl", "--json")
    result = json.loads(out)
    assert status == 1 and result["findings"][0]["kind"] == "group-of-one"
    assert result["findings"][0]["sample"] == "line 1, row 3" and result["findings"][0]["cause"]
    status, out, _ = run("check-dump", path, "--format", "verl")
    assert status == 1 and "GROUP-OF-ONE: nothing to compare" in out and out.rstrip().endswith("1 finding")
    status, _, err = run("check-dump", tmp_path / "no.jsonl", "--format", "verl")
    assert status == 2 and err.count("\n") == 1
