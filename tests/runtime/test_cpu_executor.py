from __future__ import annotations

import ctypes
import errno
import gc
import itertools
import mmap
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact.codec import encode_plan
from ingot.artifact.formats import Format
from ingot.artifact.plan import Buffer
from ingot.artifact.reader import Artifact
from ingot.artifact.select import ABI
from ingot.errors import ArtifactError, IncompatibleHostError, ResourceError, UsageError
from ingot.runtime.devices import cpu
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.devices.cpu_kernels import FUNCTIONS, Kernels, ModelStruct, StepStruct
from ingot.runtime.executor import StepWants
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.pool_size import PoolSize, pool_size, widest_window
from tests.runtime.fake_model import (
    KERNELS,
    LIMITS,
    PAGE_BYTES,
    PLAN,
    WEIGHTS,
    greedy,
    kernels,
    make_plan,
    of_plan,
    weights,
    write_fake,
)
from tests.support.open_files import open_files

ROOT = Path(__file__).resolve().parents[2]
PROMPT = [{"prompt_token_ids": [3]}]
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)

NAMES = [name.removeprefix("ingot_") for name in FUNCTIONS]
EMPTY = f"int ingot_abi(void) {{ return {ABI}; }}" + "".join(
    f"void ingot_{name}(void) {{}}" for name in NAMES
)


def open_executor(path, **options):
    return CpuExecutor(Artifact.open(path), **{"max_model_len": 96} | options)


def maps() -> str:
    return Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(("there", "tells"), [(128 << 10, True), (256 << 10, False), (None, False)])
def test_a_host_with_less_cache_than_kernels_are_cut_for_is_told_of(
    fake_artifact, monkeypatch, caplog, there, tells
):
    monkeypatch.setattr(cpu, "core_cache", lambda: there)
    with caplog.at_level("INFO", logger=cpu.__name__):
        open_executor(fake_artifact).close()
    told = "cpu:portable is cut for processors with 256 KiB of L2 cache, and those here have 128"
    assert [told in message for message in caplog.messages] == [True] * tells


def test_structs_are_laid_out_as_the_interface_says():
    assert ctypes.sizeof(ModelStruct) == 40
    assert ModelStruct.num_pages.offset == 24
    assert ctypes.sizeof(StepStruct) == 32
    assert (StepStruct.inputs.offset, StepStruct.outputs.offset) == (16, 24)


def test_closing_gives_back_the_code_the_mapping_and_the_descriptors(fake_artifact):
    before = open_files()
    assert "cpu-float32" not in maps()
    executor = open_executor(fake_artifact)
    assert "cpu-float32.safetensors" in maps() and "memfd:kernels.so" in maps()
    mapped = next(line for line in maps().splitlines() if "cpu-float32" in line)
    assert " r--p " in mapped
    executor.close()
    assert "cpu-float32" not in maps() and "memfd:kernels.so" not in maps()
    assert open_files() <= before
    executor.close()
    with pytest.raises(UsageError, match="closed"):
        executor.submit(executor.inputs[0], StepWants())


def test_experts_are_not_read_before_a_token_picks_them(fake_artifact, monkeypatch):
    """So a model runs whose experts do not fit the memory."""
    stacks, asked, mapped, real = 3 * mmap.PAGESIZE, [], [], mmap.mmap

    def map_one(fd, length, **given):
        mapped.extend([given] if fd >= 0 else [])
        return real(fd, length, **given)

    monkeypatch.setattr(cpu, "stacks_end", lambda plan, header: stacks)
    monkeypatch.setattr(cpu, "ask_for_huge_pages", lambda region, start=0: asked.append(start))
    monkeypatch.setattr(mmap, "mmap", map_one)
    open_executor(fake_artifact).close()
    assert asked == [stacks]
    assert mapped == [{"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ}]


def test_two_executors_of_one_artifact_do_not_share_state(fake_artifact):
    one, other = open_executor(fake_artifact), open_executor(fake_artifact)
    programs = [executor.open("step") for executor in (one, other)]
    assert [each.kernels._library.fake_open_states() for each in programs] == [1, 1]
    one.close()
    other.inputs[0].clear()
    assert other.submit(other.inputs[0], StepWants(kept=slice(None))).wait().rows[
        "logits"
    ].shape == (0, 320)
    other.close()


def test_the_code_that_runs_is_that_of_the_artifact_and_not_one_loaded_before(tmp_path):
    """The loader must not take a second library for the first, which has the same descriptor."""
    libraries = []
    for number in range(5):
        source, out = tmp_path / "x.c", tmp_path / "x.so"
        source.write_text(f"{EMPTY} int me(void){{return {number};}}")
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(out)], check=True)
        libraries.append(Kernels(out.read_bytes(), "kernels.so"))
    assert [kernels._library.me() for kernels in libraries] == [0, 1, 2, 3, 4]
    for library in libraries:
        library.close()


def test_code_that_was_changed_after_the_check_never_runs(tmp_path):
    path = write_fake(tmp_path / "a.ingot")
    artifact = Artifact.open(path)
    code = bytearray(kernels())
    code[-1] ^= 1
    (path / KERNELS).write_bytes(code)
    with pytest.raises(ArtifactError, match=r"kernels\.so: its hash"):
        CpuExecutor(artifact, max_model_len=8)


def wrote_in_place(path):
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"x")


@pytest.mark.parametrize("spoil", [os.utime, wrote_in_place, lambda path: os.truncate(path, 400)])
def test_no_token_comes_of_weights_that_were_written_to(tmp_path, spoil):
    path, wanted = write_fake(tmp_path / "a.ingot"), greedy([3], 4)
    with LLM(path, num_threads=1) as llm:
        assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == wanted
        spoil(path / WEIGHTS)
        for _ in range(2):
            with pytest.raises(ArtifactError, match="was written to while it was in use"):
                llm.generate(PROMPT, GREEDY)
    os.remove(path / WEIGHTS)
    (path / WEIGHTS).write_bytes(weights())
    with LLM(path, num_threads=1) as llm:
        assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == wanted


def test_weights_may_be_renamed_removed_and_closed_to_others(tmp_path):
    path, wanted = write_fake(tmp_path / "a.ingot"), greedy([3], 4)
    with LLM(path, num_threads=1) as llm:
        (path / WEIGHTS).chmod(0)
        assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == wanted
        (path / WEIGHTS).rename(path / "moved")
        (path / WEIGHTS).write_bytes(b"")
        assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == wanted
        shutil.rmtree(path)
        assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == wanted


def held():
    """Open files, and mappings of weights and code."""
    gc.collect()  # an artifact lets go of its folder at its end, and of mappings
    mapped = [line for line in maps().splitlines() if "cpu-float32" in line or "memfd" in line]
    return open_files(), len(mapped)


def nothing_is_left(before):
    """Whether nothing more is held; what earlier tests have held may be gone meanwhile."""
    (files, mapped), (files_before, mapped_before) = held(), before
    return len(files) <= len(files_before) and mapped <= mapped_before


class FailsAt:
    """Calls a function, which has no memory from the n-th time on."""

    def __init__(self, function, number):
        self._function = function
        self._left = number

    def __call__(self, *args, **options):
        self._left -= 1
        if self._left <= 0:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return self._function(*args, **options)

    @property
    def has_failed(self):
        return self._left <= 0


@pytest.mark.parametrize("module, name, least", [(mmap, "mmap", 5), (os, "memfd_create", 1)])
def test_every_memory_that_is_refused_is_an_error_and_nothing_is_left_of_it(
    fake_artifact, monkeypatch, module, name, least
):
    """Of what opening a model takes, and the first draw."""
    wanted = greedy([3], 4)
    for number in itertools.count(1):
        before = held()
        failing = FailsAt(getattr(module, name), number)
        monkeypatch.setattr(module, name, failing)
        try:
            with LLM(fake_artifact, num_threads=1) as llm:
                assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == wanted
        except ResourceError:
            assert failing.has_failed
        monkeypatch.undo()
        assert nothing_is_left(before)
        with LLM(fake_artifact, num_threads=1) as llm:
            assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == wanted
        if not failing.has_failed:
            break
    assert number > least


def test_a_draw_that_got_no_memory_fails_its_requests_and_no_later_one(fake_artifact, monkeypatch):
    with LLM(fake_artifact, num_threads=1) as llm:
        monkeypatch.setattr(mmap, "mmap", FailsAt(mmap.mmap, 1))
        with pytest.raises(ResourceError, match="the sampler"):
            llm.generate(PROMPT, GREEDY)
        monkeypatch.undo()
        assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == greedy([3], 4)


def test_a_model_whose_thread_is_refused_leaves_nothing(fake_artifact, monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    before = held()
    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(ResourceError, match="no thread can be started"):
        LLM(fake_artifact, num_threads=1)
    monkeypatch.undo()
    assert nothing_is_left(before)


@pytest.mark.parametrize(
    ("code", "error", "what"),
    [
        (b"", ArtifactError, "64-bit shared library"),
        (b"#!/bin/sh", ArtifactError, "64-bit shared library"),
        (kernels()[:18] + b"\xf7\x00" + kernels()[20:], IncompatibleHostError, "ELF machine 247"),
        (kernels()[:5000], ArtifactError, "is truncated"),
        (kernels()[:70], ArtifactError, "is truncated"),
        (kernels().replace(b"ingot_run", b"ingot_rum"), ArtifactError, "cannot be loaded"),
    ],
)
def test_code_that_cannot_be_loaded_is_a_typed_error(tmp_path, code, error, what):
    path = write_fake(tmp_path / "a.ingot", files={KERNELS: code})
    with pytest.raises(error, match=what):
        open_executor(path)


def test_code_with_another_interface_is_refused(tmp_path):
    source = tmp_path / "two.c"
    source.write_text("int ingot_abi(void) { return 1; }")
    out = tmp_path / "two.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(out)], check=True)
    with pytest.raises(ArtifactError, match=f"kernel interface 1, not {ABI}"):
        Kernels(out.read_bytes(), "kernels.so")


def test_a_host_without_the_features_is_refused_before_any_code_is_loaded(tmp_path):
    path = write_fake(tmp_path / "a.ingot", requires=("amx_tile", "no_such_feature"))
    with pytest.raises(IncompatibleHostError, match=r"lacks .*no_such_feature"):
        open_executor(path)
    assert "memfd:kernels.so" not in maps()


def test_too_many_threads_are_an_error_and_nothing_leaks(fake_artifact):
    with pytest.raises(ResourceError, match="101 threads"):
        open_executor(fake_artifact, num_threads=101)
    assert "cpu-float32" not in maps()
    for bad in (0, -1, 1025, True):
        with pytest.raises(UsageError, match="num_threads"):
            open_executor(fake_artifact, num_threads=bad)


def test_pages_follow_from_the_budget():
    plan = make_plan()
    assert pool_size(plan, 96, None) == PoolSize(24 * 6, 0)
    assert pool_size(plan, 96, 30 * PAGE_BYTES + 5) == PoolSize(30, 0)
    assert pool_size(plan, 96, 10**12) == PoolSize(24 * 6, 0)
    with pytest.raises(ResourceError) as info:
        pool_size(plan, 96, 23 * PAGE_BYTES)
    assert "holds 92 tokens" in info.value.found
    assert f"max_model_len <= 92, or kv_cache_bytes >= {24 * PAGE_BYTES}" in info.value.hint


@pytest.mark.parametrize(
    ("windows", "widest"), [((), 0), ((0,), 0), ((8,), 8), ((8, 0, 8), 0), ((8, 12, 4), 12)]
)
def test_pages_are_dropped_behind_the_widest_window_if_every_layer_has_one(windows, widest):
    plan = make_plan(windows=windows)
    assert widest_window(plan) == widest
    # 2 * 24 tokens of two steps and the window, and two pages that begin before it
    assert pool_size(plan, 96, None) == PoolSize(
        (24 if widest == 0 else (widest + 48) // 4 + 2) * 6, 0
    )


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("scale", {"name": "scales"}, "no such tensor"),
        ("scale", {"format": Format("bfloat16")}, "dtype float32"),
        ("scale", {"shape": (17,)}, "64 bytes, not 68"),
        ("logits", {"shape": ("N", "R")}, "a program returns rows"),
        ("logits", {"shape": ("R",)}, "a program returns rows"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(tmp_path, name, change, what):
    plan = make_plan()

    def changed(things):
        return tuple(replace(x, **change) if x.name == name else x for x in things)

    spec = replace(plan.spec, outputs=changed(plan.spec.outputs))
    files = {PLAN: encode_plan(replace(plan, spec=spec, buffers=changed(plan.buffers)))}
    with pytest.raises(ArtifactError, match=what):
        open_executor(write_fake(tmp_path / "a.ingot", files=files))


def test_kernels_of_another_plan_are_refused(tmp_path):
    """Signed anew, with the same limits in the manifest: the kernels still have the old ones."""
    larger = replace(LIMITS, max_num_batched_tokens=48)
    code = of_plan(kernels(), encode_plan(make_plan()))
    path = write_fake(tmp_path / "a.ingot", files={KERNELS: code})
    open_executor(path).close()
    path = write_fake(tmp_path / "b.ingot", limits=larger, files={KERNELS: code})
    with pytest.raises(ArtifactError, match=r"kernels\.so was generated from another plan"):
        open_executor(path)
    assert "memfd:kernels.so" not in maps()


def test_a_plan_of_other_limits_than_the_manifest_is_refused(tmp_path):
    plan = make_plan(replace(LIMITS, max_num_seqs=5))
    path = write_fake(tmp_path / "a.ingot", files={PLAN: encode_plan(plan)})
    with pytest.raises(ArtifactError, match=r"plan\.json is for .*max_num_seqs=5.*the manifest"):
        open_executor(path)


def test_memory_is_taken_only_where_it_is_touched(fake_artifact):
    code = """
import sys, resource
sys.path.insert(0, sys.argv[2])
from ingot.runtime.llm import LLM
import numpy
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = rss()
with LLM(sys.argv[1]) as llm:
    llm.logits([1, 2, 3])
    print((rss() - before) >> 20)
"""
    command = [sys.executable, "-c", code, str(fake_artifact), str(ROOT)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(out) < 32


def test_a_buffer_of_pages_is_found_by_its_kind():
    assert [b.name for b in make_plan().of_kind("state")] == ["k_cache_0", "v_cache_0"]
    assert isinstance(make_plan().buffer("logits"), Buffer)


@pytest.mark.parametrize("beside", [False, True])
def test_a_step_beside_the_caller_begins_when_it_is_submitted(fake_artifact, beside):
    executor = open_executor(fake_artifact)
    pending = executor.submit(executor.inputs[0], StepWants(), beside=beside)
    assert executor.open("step").kernels._library.fake_num_submitted() == beside
    pending.wait()
    executor.close()


@pytest.mark.parametrize("beside", [False, True])
def test_a_step_cannot_be_waited_for_after_closing(fake_artifact, beside):
    executor = open_executor(fake_artifact)
    pending = executor.submit(executor.inputs[0], StepWants(), beside=beside)
    executor.close()
    with pytest.raises(UsageError, match="closed"):
        pending.wait()


def test_threads_are_by_default_as_many_as_the_process_may_use(fake_artifact, monkeypatch):
    monkeypatch.setattr(cpu, "usable_processors", lambda: 3)
    executor = open_executor(fake_artifact)
    other = open_executor(fake_artifact, num_threads=2)
    assert (executor.num_threads, executor.leaves_processors) == (3, False)
    assert (other.num_threads, other.leaves_processors) == (2, True)
    executor.close()
    other.close()
