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

// Where the key groups of a tile lie, in the cache of keys or of values.
template <class T>
struct Groups {
  const T* at[groups_per_tile];
};

// Keys as the columns of q . K. Groups lie scattered over pages, beyond the reach of the
// hardware's prefetchers: reading a tile fetches the same place of the one after it.
template <class T>
struct KeySource {
  Groups<T> groups, next;

  typename Dot<T>::Columns load(int vector, int step) const {
    const int group = vector * lanes / key_group, key = vector * lanes % key_group;
    const int offset = (step * key_group + key) * Dot<T>::depth;
    prefetch(next.at[group] + offset);
    return Dot<T>::columns(groups.at[group] + offset);
  }
};

// Value rows as the columns of scores . V; bf16 is widened, since the scores are float32.
template <class T, int D>
struct ValueSource {
  Groups<T> groups, next;

  vf load(int vector, int key) const {
    const int group = key / key_group, rest = D - vector * lanes;
    const int offset = key % key_group * D + vector * lanes;
    prefetch(next.at[group] + offset);
    const T* from = groups.at[group] + offset;
    return rest >= lanes ? ingot::load(from) : ingot::load(from, rest);
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

  // Where a tile starts, which of its keys some row of the block sees, and where they lie.
  struct Tile {
    int start, begin, end;
    Groups<T> keys, values;
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
    Tile next = locate(s, head, begin / key_tile * key_tile, begin, end);
    while (next.start < end) {
      const Tile now = next;
      next = locate(s, head, now.start + key_tile, begin, end);
      visit(block, now, next);
    }
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

  // The tile at `start` of a block that sees keys [begin, end). Only pages with such keys may be
  // read: groups outside take the place of the nearest inside.
  Tile locate(int s, int head, int start, int begin, int end) const {
    const int* pages = sequences.page_table + s * sequences.page_table_stride;
    const int lowest = begin / key_group, highest = (end - 1) / key_group;
    Tile found;
    found.start = start;
    found.begin = begin > start ? begin - start : 0;
    found.end = end - start < key_tile ? end - start : key_tile;
    for (int g = 0; g < groups_per_tile; ++g) {
      const int wanted = start / key_group + g;
      const int readable = wanted < lowest ? lowest : wanted > highest ? highest : wanted;
      const int page = pages[readable * key_group / PageSize];
      const int slot = readable * key_group % PageSize;
      found.keys.at[g] = cache.key_columns(page, head, slot);
      found.values.at[g] = cache.value_row(page, head, slot);
    }
    return found;
  }

  void visit(Block& block, const Tile& now, const Tile& next) const {
    const KeySource<T> keys{now.keys, next.keys};
    const ValueSource<T, D> values{now.values, next.values};
    for_row_tiles<max_tile_rows<T>>(block.count, [&](auto height, int r, int) {
      tile<T, height.value, key_tile / lanes>(block.queries[r], D, keys, 0, D / Dot<T>::depth,
                                              block.scores[r], key_tile, Start::zero);
    });
    for (int r = 0; r < block.count; ++r)
      weigh(block.rows[r], now.start, block.scores[r], block.sums[r]);
    for_row_tiles<max_tile_rows<float>>(block.count, [&](auto height, int r, int) {
      tile<float, height.value, padded / lanes>(block.scores[r], key_tile, values, now.begin,
                                                now.end, block.sums[r], padded,
                                                Start::resume);
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
[[gnu::noinline, gnu::noipa]]
void paged_attention(Team team, Rows<const T> q, Cache<T, KvHeads, PageSize, D> cache,
                     Sequences sequences, float scale, float softcap, Rows<Out> out) {
  PagedAttention<T, Heads, KvHeads, PageSize, D, Window, Capped>{sequences, cache, scale,
                                                                 softcap}
      .run(team, q, out);
}

}  // namespace ingot
