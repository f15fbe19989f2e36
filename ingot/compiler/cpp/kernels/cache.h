// The paged cache of keys and values, and the ops that fill it.
//
// Inside one (page, head), keys lie in groups of 16: [page size / 16][D / depth][16][depth], so
// that a vector holds one k of 16 keys, the order in which a linear reads its weights; values lie
// as plain rows [page size][D]. Page sizes are multiples of 16.
#pragma once

#include "dot.h"
#include "rope.h"
#include "team.h"

namespace ingot {

inline constexpr int key_group = 16;

template <class T, int KvHeads, int PageSize, int D>
struct Cache {
  static_assert(PageSize % key_group == 0 && D % 4 == 0, "see the layout above");
  static constexpr int depth = Dot<T>::depth;

  T *keys, *values;

  static std::ptrdiff_t block(int page, int head) {
    return (static_cast<std::ptrdiff_t>(page) * KvHeads + head) * PageSize * D;
  }

  // The 16 keys that start at `slot` of a page, and the value at `slot`.
  T* key_columns(int page, int head, int slot) const { return keys + block(page, head) + slot * D; }
  T* value_row(int page, int head, int slot) const {
    return values + block(page, head) + slot * D;
  }

  // `rounded` is scratch.
  void write_key(int slot, int head, const float* from, T (&rounded)[D]) const {
    for_columns<D>([&](int c, auto part) { store(rounded + c, load(from + c, part), part); });
    const int inside = slot % PageSize, lane = inside % key_group;
    T* group = key_columns(slot / PageSize, head, inside - lane) + lane * depth;
    for (int d = 0; d < D; d += depth)
      for (int i = 0; i < depth; ++i) group[d * key_group + i] = rounded[d + i];
  }

  template <class From>
  void write_value(int slot, int head, const From* from) const {
    T* to = value_row(slot / PageSize, head, slot % PageSize);
    for_columns<D>([&](int c, auto part) { store(to + c, load(from + c, part), part); });
  }
};

// One head on its way into the cache.
template <class T, int D>
struct HeadScratch {
  float head[D];
  T rounded[D];
};

// Keys and values of a step's tokens into their slots; a slot < 0 writes nothing.
template <class T, int KvHeads, int PageSize, int D, class From>
[[gnu::noinline, gnu::noipa]]
void kv_write(Team team, int rows, Rows<const From> k, Rows<const From> v, const int* slots,
              Cache<T, KvHeads, PageSize, D> cache) {
  const Range mine = share(KvHeads, team);
  auto& scratch = team.workspace<HeadScratch<T, D>>();
  float* key = scratch.head;
  for (int row = 0; row < rows; ++row)
    for (int h = mine.begin; h < mine.end && slots[row] >= 0; ++h) {
      for_columns<D>(
          [&](int c, auto part) { store(key + c, load(k[row] + h * D + c, part), part); });
      cache.write_key(slots[row], h, key, scratch.rounded);
      cache.write_value(slots[row], h, v[row] + h * D);
    }
}

// The norms of queries and keys; null where the model has none.
struct HeadNorm {
  const float *q, *k;
  float eps, offset;
};

// Queries and keys normed and rotated, keys and values stored, in one sweep. Threads divide the
// query heads and, after them, the KV heads.
template <class T, int Heads, int KvHeads, int PageSize, int D, int Half, bool Interleaved,
          class From, class Out>
[[gnu::noinline, gnu::noipa]]
void rope_kv_write(Team team, int rows, Rows<const From> q, Rows<const From> k,
                   Rows<const From> v, Rows<const float> table, const int* slots,
                   Cache<T, KvHeads, PageSize, D> cache, HeadNorm norm, Rows<Out> out) {
  const Range mine = share(Heads + KvHeads, team);
  auto& scratch = team.workspace<HeadScratch<T, D>>();
  float* head = scratch.head;
  for (int row = 0; row < rows; ++row)
    for (int unit = mine.begin; unit < mine.end; ++unit) {
      if (unit < Heads) {
        turn_head<D, Half, Interleaved>(q[row] + unit * D, norm.q, norm.eps, norm.offset,
                                        table[row], head);
        for_columns<D>([&](int c, auto part) {
          store(out[row] + unit * D + c, load(head + c, part), part);
        });
      } else if (slots[row] >= 0) {
        const int h = unit - Heads;
        turn_head<D, Half, Interleaved>(k[row] + h * D, norm.k, norm.eps, norm.offset,
                                        table[row], head);
        cache.write_key(slots[row], h, head, scratch.rounded);
        cache.write_value(slots[row], h, v[row] + h * D);
      }
    }
}

}  // namespace ingot
