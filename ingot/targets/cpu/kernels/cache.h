// The paged cache of keys and values, and the ops that fill it.
//
// Inside one (page, head), keys lie in groups of 16 as [page size / 16][D / depth][16][depth], and
// values as [page size / depth][D][depth]. These are the columns of the products that read them:
// scores are sums over D, and results are sums over keys. int8 has a scale for every (token, head).
// Its keys lie in quads of value + 128, for products of bytes; its values have a depth of 1, since
// readers widen them. Page sizes are multiples of 16, so that neighbours share a page.
#pragma once

#include <cstring>
#include <type_traits>

#include "dot.h"
#include "quantize.h"
#include "rope.h"
#include "team.h"

namespace ingot {

inline constexpr int key_group = 16;

template <class S>
inline constexpr bool is_scaled = std::is_same_v<S, std::int8_t>;

template <class S>
inline constexpr int key_depth = Dot<S>::depth;
template <class S>
inline constexpr int value_depth = is_scaled<S> ? 1 : Dot<S>::depth;

// A head as the cache stores it, and its scale.
template <int D, class From, class S>
inline float round_head(const From* from, S (&to)[D]) {
  for_columns<D>([&](int c, auto part) { store(to + c, load(from + c, part), part); });
  return 1.0f;
}
template <int D, class From>
inline float round_head(const From* from, std::int8_t (&to)[D]) {
  return quantize_group<D>(from, to);
}

template <class S, int KvHeads, int PageSize, int D>
struct Cache {
  static_assert(PageSize % key_group == 0 && D % 4 == 0, "see the layout above");
  static constexpr int key_depth = ingot::key_depth<S>, value_depth = ingot::value_depth<S>;
  static constexpr int heads = KvHeads, key_size = D, value_size = D;

  S *keys, *values;
  float *key_scales, *value_scales;  // [pages][KvHeads][PageSize]; null where S is not scaled

  // The (page, head) that a slot lies in, counted in tokens.
  static std::ptrdiff_t token(int page, int head, int slot) {
    return (static_cast<std::ptrdiff_t>(page) * KvHeads + head) * PageSize + slot;
  }

  // The 16 keys, and the 16 values, that start at `slot` of a page.
  S* key_columns(int page, int head, int slot) const { return keys + token(page, head, slot) * D; }
  S* value_columns(int page, int head, int slot) const {
    return values + token(page, head, slot) * D;
  }

  // Fetches the lines that a key, or a value, will be written to.
  void fetch_key(int slot, int head) const {
    const S* group = key_columns(slot / PageSize, head, slot % PageSize / key_group * key_group);
    for (int d = 0; d < D; d += key_depth) prefetch(group + d * key_group);
  }
  void fetch_value(int slot, int head) const {
    const int inside = slot % PageSize / value_depth * value_depth;
    const S* columns = value_columns(slot / PageSize, head, inside);
    for (int i = 0; i < D * value_depth; i += 64 / sizeof(S)) prefetch(columns + i);
  }

  // `rounded` is scratch.
  template <class From>
  void write_key(int slot, int head, const From* from, S (&rounded)[D]) const {
    const float scale = round_head<D>(from, rounded);
    const int page = slot / PageSize, inside = slot % PageSize, lane = inside % key_group;
    S* group = key_columns(page, head, inside - lane) + lane * key_depth;
    if constexpr (is_scaled<S>)
      for (S& value : rounded) value = static_cast<S>(value ^ -128);
    for (int d = 0; d < D; d += key_depth)
      std::memcpy(group + d * key_group, rounded + d, key_depth * sizeof(S));
    if constexpr (is_scaled<S>) key_scales[token(page, head, inside)] = scale;
  }

  template <class From>
  void write_value(int slot, int head, const From* from, S (&rounded)[D]) const {
    const float scale = round_head<D>(from, rounded);
    const int page = slot / PageSize, inside = slot % PageSize, lane = inside % value_depth;
    S* columns = value_columns(page, head, inside - lane);
    if constexpr (value_depth == 2)
      store_alternate(columns, rounded, lane, D);
    else
      std::memcpy(columns, rounded, sizeof rounded);
    if constexpr (is_scaled<S>) value_scales[token(page, head, inside)] = scale;
  }
};

// One head on its way into the cache.
template <class S, int D>
struct HeadScratch {
  float head[D];
  S rounded[D];
};

// Keys and values of a step's tokens into their slots; a slot < 0 writes nothing.
template <class S, int KvHeads, int PageSize, int D, class From>
[[gnu::noinline, gnu::noipa]]
void kv_write(Slice slice, Rows<const From> k, Rows<const From> v, const int* slots,
              Cache<S, KvHeads, PageSize, D> cache) {
  const Range mine = share(KvHeads, slice.team);
  auto& scratch = slice.team.workspace<HeadScratch<S, D>>();
  for (int row = slice.rows.begin; row < slice.rows.end; ++row)
    for (int h = mine.begin; h < mine.end && slots[row] >= 0; ++h) {
      cache.write_key(slots[row], h, k[row] + h * D, scratch.rounded);
      cache.write_value(slots[row], h, v[row] + h * D, scratch.rounded);
    }
}

// The norms of queries and keys; null where the model has none.
struct HeadNorm {
  const float *q, *k;
  float eps, offset;
};

// Whether a head belongs to a thread; `unit` counts the query heads and then the KV heads. If KV
// heads are dealt evenly, a query head goes to the thread of its KV head, as in attention.
template <int Heads, int KvHeads>
inline bool has_head(int unit, Team team) {
  const bool even = even_heads(KvHeads, team);
  const Range mine = share(even ? KvHeads : Heads + KvHeads, team);
  if (even) unit = unit < Heads ? unit / (Heads / KvHeads) : unit - Heads;
  return unit >= mine.begin && unit < mine.end;
}

// Fetches a head of a later row: rows lie too far apart for the hardware to foresee them.
template <int D, class T>
inline void prefetch_head(const T* head) {
  for (int d = 0; d < D; d += 64 / sizeof(T)) prefetch(head + d);
}

// Norms and rotates queries and keys, and stores keys and values, in one sweep.
template <int Heads, int Half, bool Interleaved, class S, int KvHeads, int PageSize, int D,
          class From, class Out>
[[gnu::noinline, gnu::noipa]]
void rope_kv_write(Slice slice, Rows<const From> q, Rows<const From> k,
                   Rows<const From> v, Rows<const float> table, const int* slots,
                   Cache<S, KvHeads, PageSize, D> cache, HeadNorm norm, Rows<Out> out) {
  auto& scratch = slice.team.workspace<HeadScratch<S, D>>();
  float* head = scratch.head;
  for (int unit = 0; unit < Heads + KvHeads; ++unit) {
    if (!has_head<Heads, KvHeads>(unit, slice.team)) continue;
    for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
      const int later = row + 3;
      if (unit < Heads) {
        prefetch_head<D>(q[later] + unit * D);
        turn_head<D, Half, Interleaved>(q[row] + unit * D, norm.q, norm.eps, norm.offset,
                                        table[row], head);
        for_columns<D>([&](int c, auto part) {
          store(out[row] + unit * D + c, load(head + c, part), part);
        });
      } else if (slots[row] >= 0) {
        const int h = unit - Heads;
        prefetch_head<D>(k[later] + h * D);
        prefetch_head<D>(v[later] + h * D);
        turn_head<D, Half, Interleaved>(k[row] + h * D, norm.k, norm.eps, norm.offset,
                                        table[row], head);
        cache.write_key(slots[row], h, head, scratch.rounded);
        cache.write_value(slots[row], h, v[row] + h * D, scratch.rounded);
      }
    }
  }
}

}  // namespace ingot
