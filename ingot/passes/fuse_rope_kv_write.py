"""fuse_rope_kv_write: what happens to queries, keys and values before attention is one sweep."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from ingot.artifact.target import Target
from ingot.ops.kv_write import CACHES
from ingot.passes.graph import arguments, call_op, is_op, op_calls, replace, value

TABLES = ("table", "interleaved")


def fuse_rope_kv_write(gm: GraphModule, *, target: Target) -> int:
    """Fuse the norms of queries and keys, their rotation, and the write into the cache.

    Before:
        q = rope(rms_norm(q, qn), table);  k = rope(rms_norm(k, kn), table)
        kv_write(k, v, k_cache, v_cache, slots);  y = paged_attention(q, k_cache, ...)
    After:
        q = rope_kv_write(q, k, v, table, slots, k_cache, v_cache, qn, kn, eps)
        y = paged_attention(q, k_cache, ...)
    """
    writes = {arguments(node)["k_cache"]: node for node in op_calls(gm, "kv_write")}
    return sum(fuse(node, writes) for node in op_calls(gm, "paged_attention"))


def fuse(attention: Node, writes: dict[Node, Node]) -> int:
    write = writes.get(arguments(attention)["k_cache"])
    if write is None:
        return 0
    stored, q = arguments(write), arguments(attention)["q"]
    q_turned, k_turned = turning(q), turning(stored["k"])
    if q_turned is None or k_turned is None:
        return 0
    (q_given, q_rope), (k_given, _) = q_turned, k_turned
    shared = ("table", "interleaved", "eps", "offset")
    if any(q_given[name] != k_given[name] for name in shared) or (
        (q_given["norm"] is None) != (k_given["norm"] is None)
    ):
        return 0
    with attention.graph.inserting_before(write):
        new = call_op(
            attention.graph,
            "rope_kv_write",
            like=attention,
            val=value(q),
            q=q_given["x"],
            k=k_given["x"],
            q_norm=q_given["norm"],
            k_norm=k_given["norm"],
            out_dtype=q_rope["out_dtype"],
            **{name: q_given[name] for name in shared},
            **{name: stored[name] for name in ("v", "slots", *CACHES)},
        )
    attention.graph.erase_node(write)
    replace(q, new)
    return 1


def turning(node: Node) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What a rotation, and a norm before it that nothing else reads, are made of."""
    if not is_op(node, "rope") or len(node.users) != 1:
        return None
    rope = arguments(node)
    found = {"x": rope["x"], "norm": None, "eps": 0.0, "offset": 0.0}
    if is_op(rope["x"], "rms_norm") and len(rope["x"].users) == 1:
        norm = arguments(rope["x"])
        found = {name: norm[name] for name in ("x", "eps", "offset")} | {"norm": norm["weight"]}
    return found | {name: rope[name] for name in TABLES}, rope
