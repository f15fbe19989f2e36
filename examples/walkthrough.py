"""Compiles a model of two layers, and shows what every stage makes of it. Ten minutes to read.

    python examples/walkthrough.py [FOLDER]

FOLDER keeps all that is written, to be looked at afterwards; without it all goes in the end. This
needs what compiling needs: PyTorch and a C++ compiler.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path

from tiny_model import CONFIG, write_model

import ingot

# What each pass is for. A pass that changes this model and is not here fails the program.
PASSES = {
    "canonicalize_casts": "PyTorch's export leaves casts and checks that change no value. They go.",
    "canonicalize_views": "One idea gets one spelling: every change of shape becomes a reshape.",
    "canonicalize_ops": "What is a primitive already gets its name: aten.linear becomes linear.",
    "fuse_rms_norm": "Six calls are one idea: a norm. The pass has to find as many norms as the "
    "modules of the model promise. One less is an error, and no slow artifact.",
    "fuse_rope_table": "Angles, cosines and sines of all positions are one table.",
    "fuse_rope": "Rotating the two halves of each head is one primitive.",
    "fuse_gates": "The activation and the product with it are one gate.",
    "merge_linears": "Products that read the same rows become one, of stacked weights: q, k and v; "
    "gate and up. Reading one large matrix is faster than reading several small ones.",
    "rewrite_attention": "Until here the graph has no cache. Now keys and values go into pages, "
    "and attention reads them from there. Everything else works token by token, so this rewrite "
    "is all that a batch of many sequences needs.",
    "select_logit_rows": "Only the rows whose logits are wanted go on after the last attention.",
}
SHOWN = 5  # lines of each kind that are shown of what a pass changed
PROMPTS = ["To be, or", "The king"]


def main() -> None:
    """Goes through the stages, in a folder that was given or in one that goes in the end."""
    if len(sys.argv) > 1:
        return walk(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as name:
        walk(Path(name))


def walk(folder: Path) -> None:
    """All stages of one model."""
    model_dir, out, dump = folder / "model", folder / "walkthrough.ingot", folder / "passes"
    show_model(model_dir)
    report = ingot.compile(model_dir, out, dtype="float32", dump_dir=dump)
    show_passes(dump)
    artifact = ingot.Artifact.open(out)
    show_plan(artifact)
    show_groups(artifact)
    show_memory(artifact)
    show_code(artifact)
    show_folder(artifact)
    show_run(out, report.golden_error)


def show_model(model_dir: Path) -> None:
    """Writes a model with random weights."""
    tensors = write_model(model_dir)
    title(
        "1. The model",
        "A model directory has three files: config.json, the weights and a tokenizer. This is the "
        "config.json. Every key must be known to the family, here Llama; an unknown one is an "
        "error, since it could change what the model computes.",
    )
    show(f"{key}: {json.dumps(value)}" for key, value in CONFIG.items())
    say(
        f"model.safetensors has its {len(tensors)} tensors, here random numbers that a seed fixes. "
        "tokenizer.json says which numbers a text becomes. These are the tensors of one layer:"
    )
    layer = {name: tensor for name, tensor in tensors.items() if "layers.0" in name}
    show(f"{name:50} {list(tensor.shape)}" for name, tensor in layer.items())


# The graph.


def show_passes(dump: Path) -> None:
    """The graph as it was exported, what each pass changed in it, and how it ended."""
    title(
        "2. The graph",
        "The model is a plain PyTorch module: one sequence, no cache, no device. PyTorch captures "
        "it as a graph. Each line is a call, with the dtype and shape of its result, its arguments "
        "and, after #, the module that it comes from. N is any number of tokens. This is the MLP "
        "of the first layer, and the norm before it:",
    )
    before, *files = sorted(dump.glob("[0-9]*.txt"))
    show(of_module(lines(before), "model.layers.0.post_attention_layernorm", "model.layers.0.mlp"))
    title(
        "3. The passes",
        "Passes turn the graph into primitives, one small step after the other. The graph can be "
        "run after each: `ingot compile --verify-passes` does, and compares. Below stands what "
        "each pass removed (-), added (+) and changed (~), outside of the second layer.",
    )
    for after in files:
        name = after.stem.partition("_")[2]
        say(f"{after.stem}. {PASSES[name]}")
        show(changes(lines(before), lines(after)))
        before = after
    say("In the end this is the whole first layer:")
    show(of_module(lines(before), "model.layers.0"))


def lines(file: Path) -> list[str]:
    """The calls of a graph, without its weights and the second layer, which is like the first."""
    text = re.sub(r"9223372036854775807", "end", file.read_text())
    text = re.sub(r"  # _.*", "", text)
    kept = (line for line in text.splitlines() if " = weight " not in line)
    return [line for line in kept if "# model.layers.1" not in line]


def of_module(graph: list[str], *paths: str) -> list[str]:
    """The lines that come from these modules and those inside them."""
    inside = tuple(f"{path}." for path in paths)
    origins = ((line.rpartition("# ")[2], line) for line in graph)
    return [line for path, line in origins if path in paths or path.startswith(inside)]


def changes(before: list[str], after: list[str]) -> list[str]:
    """Calls that are gone, new or changed, by the names of their results; of each the first."""
    old, new = ({name_of(line): line for line in graph} for graph in (before, after))
    kinds = {
        "-": [old[name] for name in old if name not in new],
        "+": [new[name] for name in new if name not in old],
        "~": [new[name] for name in new if name in old and new[name] != old[name]],
    }
    shown = []
    for sign, those in kinds.items():
        shown += [f"{sign} {line}" for line in those[:SHOWN]]
        shown += [f"{sign} ... and {len(those) - SHOWN} more"] if len(those) > SHOWN else []
    return shown


def name_of(line: str) -> str:
    """The name of a call's result."""
    return line.partition(" = ")[0].split()[-1]


# The plan.


def show_plan(artifact: ingot.Artifact) -> None:
    """The instructions of the first layer."""
    plan = artifact.plan
    title(
        "4. The plan",
        "A plan is the graph as pure data: buffers, and instructions over them. It is all that the "
        "code generator sees, and it is read without PyTorch. These are the instructions of the "
        "first layer, with the format and shape of what each writes. Some write into the cache, "
        "and have no result.",
    )
    rows = []
    for number, each in enumerate(plan.instructions):
        if each.origin.startswith("model.layers.0"):
            written = [plan.buffer(name) for name in each.outputs.values()]
            what = "".join(f"{b.format} {list(b.shape)}" for b in written).replace("'", "")
            rows.append(f"{number:3}  {each.op:16} {what:24} {each.origin}")
    show(rows)


def show_groups(artifact: ingot.Artifact) -> None:
    """The kernels of the first layer, and the ledger."""
    plan = artifact.plan
    title(
        "5. The groups",
        f"The target, {artifact.target.name}, runs neighbouring instructions as one kernel where "
        "it has one. Such a group means its instructions, run in order. Here a gate goes into the "
        "product before it, and so does the sum with the residual: their numbers never leave the "
        "processor's cache. The instructions above become these kernels:",
    )
    rows = []
    for number, group in enumerate(plan.kernels):
        members = plan.members(group)
        if members[0].origin.startswith("model.layers.0"):
            rows.append(f"{number:3}  {group.kernel:28} {', '.join(i.op for i in members)}")
    show(rows)
    say(
        "The ledger of the artifact counts how many groups the structure allows and how many were "
        "formed, and has a reason for each that was not."
    )
    show(
        f"{entry.name}: {entry.formed} of {entry.allowed}"
        + "".join(f"; {count} x {reason}" for reason, count in entry.reasons)
        for entry in artifact.target.main.groups
        if entry.allowed
    )


def show_memory(artifact: ingot.Artifact) -> None:
    """The arena, drawn over the kernels."""
    memory, count = artifact.plan.memory, len(artifact.plan.kernels)
    title(
        "6. The memory",
        f"All temporaries of the largest step lie in one arena of {memory.arena_bytes} bytes. Two "
        "share a place if they never live at once. Each column is a kernel, and # says that the "
        "temporary lives there. Many live on after their last use: threads wait for each other as "
        "seldom as they can, so one may be some kernels behind.",
    )
    rows = []
    for slot in sorted(memory.slots, key=lambda slot: (slot.first_use, slot.offset)):
        alive = range(slot.first_use, slot.last_use + 1)
        drawn = "".join("#" if kernel in alive else "." for kernel in range(count))
        rows.append(f"{slot.offset:8} to {slot.offset + slot.nbytes:8}  {drawn}  {slot.name}")
    show(rows)


# The code, and the run.


def show_code(artifact: ingot.Artifact) -> None:
    """How the first MLP is called, and the function that is called."""
    names = [name for name in artifact.names("targets") if name.endswith(".cpp")]
    parts = [part for name in names for part in artifact.read(name).decode().split("\n\n")]
    call = next(part for part in parts if "model.layers.0.mlp:" in part)
    title(
        "7. The code",
        "The step is one C++ function that calls every kernel, with the places of its operands. "
        "Every thread runs it, and waits for the others only where data crosses between them.",
    )
    show(call.splitlines())
    say(
        "Both layers call the same function. Its template is instantiated with the sizes of this "
        "model, so that the compiler knows each of them."
    )
    called = re.findall(r"^ *(\w+)\(frame", call, re.M)[0]
    show(next(part for part in parts if part.startswith(f"void {called}(")).splitlines())


def show_folder(artifact: ingot.Artifact) -> None:
    """The files of the artifact."""
    title("8. The artifact", "All of it is one folder, and the manifest has the hash of each file.")
    show(f"{entry.size:8}  {name}" for name, entry in sorted(artifact.manifest.files.items()))


def show_run(path: Path, golden_error: float | None) -> None:
    """Writes after two prompts, each alone and both at once."""
    title(
        "9. A run",
        "The reference is the plain module in float32. Its log-probabilities of some prompts are "
        "in the artifact, and the compile has compared: the largest difference is "
        f"{golden_error:.0e}. `ingot verify` compares again wherever the folder lands.",
    )
    params = ingot.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0)
    with ingot.LLM(path) as llm:
        together = [request.outputs[0] for request in llm.generate(PROMPTS, params)]
        alone = [llm.generate([prompt], params)[0].outputs[0] for prompt in PROMPTS]
    if [one.logprobs for one in together] != [one.logprobs for one in alone]:
        sys.exit("The other prompt changed a log-probability.")
    show(
        f"{prompt!r} goes on with the tokens {one.token_ids}"
        for prompt, one in zip(PROMPTS, together, strict=True)
    )
    say(
        "The weights are random, and so is what they write. But each prompt has been run twice, "
        "with the other one and alone, and every log-probability is the same, to the last bit."
    )


# What is printed.


def title(text: str, paragraph: str) -> None:
    """A heading, and what follows it."""
    print(f"{text}\n{'=' * len(text)}\n")
    say(paragraph)


def say(paragraph: str) -> None:
    """A paragraph of words."""
    print(f"{textwrap.fill(paragraph, 96)}\n")


def show(text: Iterable[str]) -> None:
    """Lines of something that was made, as they are."""
    print(textwrap.indent("\n".join(text), "    ") + "\n")


if __name__ == "__main__":
    main()
