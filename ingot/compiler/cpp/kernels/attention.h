// Causal attention of several sequences over their pages, with an online softmax.
//
// A unit of work is (sequence, KV head, block of rows), a row being one query of one head of
// the group that shares the KV head: keys and values are read once for the whole group. Keys are
// visited in tiles of 64 at absolute positions, so a row meets the same tiles in the same order
// whatever block it is in; a tile that it cannot see changes nothing, to the last bit: its scores
// are -inf, its weights 0 and its rescaling factor 1.
#pragma once

#include "cache.h"
#include "math.h"
#include "tile.h"

namespace ingot {

inline constexpr int key_tile = 64;
inline constexpr int groups_per_tile = key_tile / key_group;
inline constexpr int attention_rows = 48;  // a block's queries, scores and sums: ~100 KiB

template <class T>
struct KeySource {
  const T* groups[groups_per_tile];

  typename Dot<T>::Columns load(int vector, int step) const {
    const int key = vector * lanes;
    const T* at = groups[key / key_group] + step * key_group * Dot<T>::depth;
    return Dot<T>::columns(at + key % key_group * Dot<T>::depth);
  }
};

// Value rows as the columns of scores . V; bf16 is widened, since the scores are float32.
template <class T, int D>
struct ValueSource {
  const T* groups[groups_per_tile];

  vf load(int vector, int key) const {
    const T* at = groups[key / key_group] + key % key_group * D + vector * lanes;
    return D - vector * lanes >= lanes ? ingot::load(at) : ingot::load(at, D - vector * lanes);
  }
};

// The sequences of a step, as attention needs them.
struct Sequences {
  int count;
  const int *query_start, *context_lens, *page_table;
  int page_table_stride;
};

template <class T, int Heads, int KvHeads, int PageSize, int D, int Window, bool Capped>
class PagedAttention {
 public:
  static constexpr int group = Heads / KvHeads;

  Sequences sequences;
  Cache<T, KvHeads, PageSize, D> cache;
  float scale, softcap;

  template <class Out>
  void run(Team team, Rows<const T> q, Rows<Out> out) const {
    int rows_per_block = attention_rows;
    while (rows_per_block > 1 && num_units(rows_per_block) < team.size) rows_per_block /= 2;
    int unit = 0;
    for (int s = 0; s < sequences.count; ++s) {
      const int rows = num_queries(s) * group;
      for (int row = 0; row < rows; row += rows_per_block)
        for (int head = 0; head < KvHeads; ++head, ++unit) {
          if (unit % team.size != team.rank) continue;
          const int count = rows - row < rows_per_block ? rows - row : rows_per_block;
          run_block(team.workspace<Block>(), s, head, row, count, q, out);
        }
    }
  }

 private:
  static constexpr int padded = (D + lanes - 1) / lanes * lanes;

  // A row's visible keys [first, end), and what the softmax has seen of them.
  struct Row {
    int first, end;
    float largest, total;
  };

  struct Block {
    alignas(64) T queries[attention_rows][D];
    alignas(64) float scores[attention_rows][key_tile];
    alignas(64) float sums[attention_rows][padded];
    Row rows[attention_rows];
    int count;
  };

  int num_queries(int s) const {
    return sequences.query_start[s + 1] - sequences.query_start[s];
  }
  int num_units(int rows_per_block) const {
    int units = 0;
    for (int s = 0; s < sequences.count; ++s)
      units += (num_queries(s) * group + rows_per_block - 1) / rows_per_block * KvHeads;
    return units;
  }

  template <class Out>
  __attribute__((noinline)) void run_block(Block& block, int s, int head, int first_row,
                                           int count, Rows<const T> q, Rows<Out> out) const {
    block.count = count;
    const int query0 = sequences.query_start[s];
    const int position0 = sequences.context_lens[s] - num_queries(s);
    for (int r = 0; r < count; ++r) {
      const int query = (first_row + r) / group, inside = (first_row + r) % group;
      const T* from = q[query0 + query] + (head * group + inside) * D;
      for (int d = 0; d < D; ++d) block.queries[r][d] = from[d];
      for (int d = 0; d < padded; ++d) block.sums[r][d] = 0;
      const int position = position0 + query;
      const int first = Window > 0 && position >= Window ? position - Window + 1 : 0;
      block.rows[r] = {first, position + 1, -__builtin_inff(), 0};
    }
    const int begin = block.rows[0].first, end = block.rows[count - 1].end;
    for (int tile = begin / key_tile * key_tile; tile < end; tile += key_tile)
      visit_tile(block, s, head, tile, begin > tile ? begin - tile : 0,
                 end - tile < key_tile ? end - tile : key_tile);
    for (int r = 0; r < count; ++r) {
      const int query = (first_row + r) / group, inside = (first_row + r) % group;
      const vf inverse = splat(1.0f / block.rows[r].total);
      Out* to = out[query0 + query] + (head * group + inside) * D;
      // Adding 0 turns -0 into 0: a tile without visible keys may have done so already.
      for_columns<D>([&](int c, auto part) {
        store(to + c, load(block.sums[r] + c) * inverse + zero(), part);
      });
    }
  }

  // Keys [begin, end) of the tile are visible to some row of the block; the cache holds nothing
  // that may be read beside them.
  void visit_tile(Block& block, int s, int head, int tile_start, int begin, int end) const {
    const int* pages = sequences.page_table + s * sequences.page_table_stride;
    KeySource<T> keys;
    ValueSource<T, D> values;
    for (int g = 0; g < groups_per_tile; ++g) {
      const int lowest = begin / key_group, highest = (end - 1) / key_group;
      const int readable = g < lowest ? lowest : g > highest ? highest : g;
      const int key = tile_start + readable * key_group;
      const int page = pages[key / PageSize], slot = key % PageSize;
      keys.groups[g] = cache.key_columns(page, head, slot);
      values.groups[g] = cache.value_row(page, head, slot);
    }
    for_row_tiles<max_tile_rows<T>>(block.count, [&](auto height, int r) {
      tile<T, height.value, key_tile / lanes>(block.queries[r], D, keys, 0, D / Dot<T>::depth,
                                              block.scores[r], key_tile, Start::zero);
    });
    for (int r = 0; r < block.count; ++r)
      weigh(block.rows[r], tile_start, block.scores[r], block.sums[r]);
    for_row_tiles<max_tile_rows<float>>(block.count, [&](auto height, int r) {
      tile<float, height.value, padded / lanes>(block.scores[r], key_tile, values, begin, end,
                                                block.sums[r], padded, Start::resume);
    });
  }

  // Turns a row's scores into weights relative to the largest score so far, and rescales what
  // was summed under a smaller one.
  void weigh(Row& row, int tile_start, float* scores, float* sums) const {
    constexpr int vectors = key_tile / lanes;
    const int begin = row.first - tile_start, end = row.end - tile_start;
    const vf hidden = splat(-__builtin_inff());
    vf score[vectors];
    vf top = hidden;
    for (int v = 0; v < vectors; ++v) {
      vf x = load(scores + v * lanes) * splat(scale);
      if constexpr (Capped) x = tanh(x / splat(softcap)) * splat(softcap);
      score[v] = keep(x, begin - v * lanes, end - v * lanes, hidden);
      top = max(top, score[v]);
    }
    const bool visible = begin < key_tile && end > 0;
    const float tile_largest = maximum(top);
    const float largest = tile_largest > row.largest ? tile_largest : row.largest;
    vf total = zero();
    for (int v = 0; v < vectors; ++v) {
      const vf weight = visible ? exp(score[v] - splat(largest)) : zero();
      store(scores + v * lanes, weight);
      total = total + weight;
    }
    if (!visible) return;
    if (largest != row.largest) {
      const vf factor = exp(splat(row.largest - largest));
      row.total = row.total * first(factor);
      for (int d = 0; d < padded; d += lanes) store(sums + d, load(sums + d) * factor);
      row.largest = largest;
    }
    row.total = row.total + sum(total);
  }
};

template <class T, int Heads, int KvHeads, int PageSize, int D, int Window, bool Capped,
          class Out>
void paged_attention(Team team, Rows<const T> q, Cache<T, KvHeads, PageSize, D> cache,
                     Sequences sequences, float scale, float softcap, Rows<Out> out) {
  PagedAttention<T, Heads, KvHeads, PageSize, D, Window, Capped>{sequences, cache, scale,
                                                                 softcap}
      .run(team, q, out);
}

}  // namespace ingot
