// Causal attention of several sequences over their pages, with an online softmax.
//
// A unit of work is (sequence, KV head, block of rows), a row being one query of one head of
// the group that shares the KV head: keys and values are read once for the whole group. Keys are
// visited in tiles of 64 at absolute positions. A weight is 2^(score - n), n being the largest score
// so far as a whole number: a larger one rescales sums exactly, so that neither tiles nor what a row
// cannot see change its result by one bit.
#pragma once

#include <cstring>

#include "math.h"
#include "tile.h"
#include "tile_reader.h"

namespace ingot {

// T: what queries, keys and values are multiplied in; S: what the cache stores.
template <class T, class S, int Heads, int KvHeads, int PageSize, int D, int Window, bool Capped>
class PagedAttention {
 public:
  static constexpr int group = Heads / KvHeads;

  Sequences sequences;
  Cache<S, KvHeads, PageSize, D> cache;
  float scale, softcap;

  // `to` takes the result of a head: at a row and a column, in memory where it may work.
  template <class To>
  void run(Team team, Rows<const T> q, const To& to) const {
    int rows_per_block = most_rows;
    while (rows_per_block > 1 && num_units(rows_per_block) < team.size) rows_per_block /= 2;
    auto& block = team.workspace<Block>();
    // Heads in turn: see even_heads.
    Unit unit = settled({0, team.rank, 0, 0, 0, 0}, rows_per_block);
    while (unit.sequence < sequences.count) {
      const Unit next =
          settled({unit.sequence, unit.head + team.size, unit.row, 0, 0, 0}, rows_per_block);
      run_unit(block, unit, next, q, to);
      unit = next;
    }
  }

 private:
  static constexpr int padded = (D + lanes - 1) / lanes * lanes;
  static constexpr int most_rows = D <= 256 ? 48 : 24;
  static constexpr int tile_rows = max_tile_rows<T>;

  // As many rows as leave registers for the sums of a whole head, which reads values line by line.
  static constexpr int few_rows() {
    for (int rows = tile_rows; rows >= 3; --rows)
      if (tile_vectors(rows) * lanes >= D) return rows;
    return tile_rows;
  }

  // Rows [row, row + count) of a sequence and a KV head, which see keys [begin, end).
  struct Unit {
    int sequence, head, row, count, begin, end;
  };

  // A row's visible keys [first, end), and the largest score seen of them, as a whole number.
  struct Row {
    int first, end;
    float largest;
  };

  // 100 KiB with D = 128 and two bytes an element.
  struct Block {
    alignas(64) T queries[most_rows][D];
    alignas(64) float sums[most_rows][padded];
    alignas(64) float scores[most_rows][key_tile];
    alignas(64) T weights[most_rows][key_tile];
    alignas(64) float totals[most_rows][lanes];
    TileReader<T, S, D> reader;
    Row rows[most_rows];
    int count;
  };

  int num_rows(int s) const { return sequences.num_queries(s) * group; }
  int num_units(int rows_per_block) const {
    int units = 0;
    for (int s = 0; s < sequences.count; ++s)
      units += (num_rows(s) + rows_per_block - 1) / rows_per_block * KvHeads;
    return units;
  }

  static int first_key(int position) {
    return Window > 0 && position >= Window ? position - Window + 1 : 0;
  }

  // The unit meant by a head past the last: of the next rows or the next sequence.
  Unit settled(Unit unit, int rows_per_block) const {
    while (unit.sequence < sequences.count) {
      const int rows = num_rows(unit.sequence) - unit.row;
      if (rows <= 0) {
        unit.row = 0;
        ++unit.sequence;
      } else if (unit.head >= KvHeads) {
        unit.head -= KvHeads;
        unit.row += rows_per_block;
      } else {
        unit.count = rows < rows_per_block ? rows : rows_per_block;
        unit.begin = first_key(sequences.position(unit.sequence, unit.row / group));
        unit.end = sequences.position(unit.sequence, (unit.row + unit.count - 1) / group) + 1;
        break;
      }
    }
    return unit;
  }

  Tile<S> tile_at(const Unit& unit, int start) const {
    const int* pages = sequences.page_table + unit.sequence * sequences.page_table_stride;
    return locate(cache, pages, unit.head, start, unit.begin, unit.end);
  }
  Tile<S> first_tile(const Unit& unit) const {
    return tile_at(unit, unit.begin / key_tile * key_tile);
  }

  template <class To>
  __attribute__((noinline)) void run_unit(Block& block, const Unit& unit, const Unit& following,
                                          Rows<const T> q, const To& to) const {
    start(block, unit, q);
    if (following.sequence < sequences.count) fetch_queries(following, q);
    Tile<S> now = first_tile(unit);
    for (bool last = false; !last;) {
      last = now.start + key_tile >= unit.end;
      const Tile<S> next = !last ? tile_at(unit, now.start + key_tile)
                           : following.sequence < sequences.count ? first_tile(following)
                                                                  : now;
      visit(block, now, next);
      now = next;
    }
    finish(block, unit, to);
  }

  // The place of a unit's row in the step's queries and results.
  int query_of(const Unit& unit, int r) const {
    return sequences.query_start[unit.sequence] + (unit.row + r) / group;
  }
  static int column_of(const Unit& unit, int r) {
    return (unit.head * group + (unit.row + r) % group) * D;
  }

  // They lie a whole row of heads apart, which the hardware does not foresee.
  void fetch_queries(const Unit& unit, Rows<const T> q) const {
    for (int r = 0; r < unit.count; ++r) {
      const T* from = q[query_of(unit, r)] + column_of(unit, r);
      for (int d = 0; d < D; d += 64 / sizeof(T)) prefetch(from + d);
    }
  }

  void start(Block& block, const Unit& unit, Rows<const T> q) const {
    block.count = unit.count;
    for (int r = 0; r < unit.count; ++r) {
      const T* from = q[query_of(unit, r)] + column_of(unit, r);
      std::memcpy(block.queries[r], from, sizeof block.queries[r]);
      for (int d = 0; d < padded; d += lanes) store(block.sums[r] + d, zero());
      store(block.totals[r], zero());
      const int position = sequences.position(unit.sequence, (unit.row + r) / group);
      block.rows[r] = {first_key(position), position + 1, -__builtin_inff()};
    }
  }

  template <class To>
  void finish(Block& block, const Unit& unit, const To& to) const {
    for (int r = 0; r < unit.count; ++r) {
      const vf inverse = splat(1.0f / sum(load(block.totals[r])));
      float* sums = block.sums[r];
      // Adding 0 turns -0 into 0: a key that is not visible may have done so already.
      for (int c = 0; c < padded; c += lanes) store(sums + c, load(sums + c) * inverse + zero());
      to.take(query_of(unit, r), column_of(unit, r), sums);
    }
  }

  // One product after the other for all rows, so that the first level of cache holds what the
  // rows share.
  void visit(Block& block, const Tile<S>& now, const Tile<S>& next) const {
    auto& reader = block.reader;
    const bool once = block.count <= few_rows();
    reader.keys(now, once, [&](const auto& keys, const auto& fetched) {
      score_all(block, now, keys, fetched);
    });
    for (int r = 0; r < block.count; ++r) find_largest(block, r, now.start);
    for (int r = 0; r < block.count; ++r) weigh(block, r, now.start);
    reader.values(now, next, once, [&](const auto& values, const auto& fetched) {
      if constexpr (is_scaled<S>) scale_weights(block);
      add_all(block, now, values, fetched);
    });
  }

  template <class Element>
  static void score_all(Block& block, const Tile<S>& now, const Groups<Element>& keys,
                        const Groups<Element>& fetched) {
    constexpr int most = std::is_same_v<Element, T> ? tile_rows : few_rows();
    for_row_tiles<most>(block.count, [&](auto height, int r, int) {
      score<height.value>(block, r, now, KeySource<T, Element>{keys, r == 0 ? fetched : keys, 0});
    });
  }

  template <class Element>
  static void add_all(Block& block, const Tile<S>& now, const Groups<Element>& values,
                      const Groups<Element>& fetched) {
    for_row_tiles<few_rows()>(block.count, [&](auto height, int r, int) {
      add_values<height.value>(
          block, r, now, ValueSource<T, Element, D>{values, r == 0 ? fetched : values});
    });
  }

  // The keys of a tile that one of the rows [r, r + Height) sees.
  template <int Height>
  static Range visible(const Block& block, int r, const Tile<S>& now) {
    const int first = block.rows[r].first - now.start;
    const int end = block.rows[r + Height - 1].end - now.start;
    return {first > 0 ? first : 0, end < key_tile ? end : key_tile};
  }

  template <int Height, class Source>
  static void score(Block& block, int r, const Tile<S>& now, Source source) {
    const Range keys = visible<Height>(block, r, now);
    if (keys.begin >= keys.end) return;
    source.first = keys.begin / key_group;
    const int groups = (keys.end - 1) / key_group + 1 - source.first;
    with_rows<groups_per_tile>(groups, [&](auto count) {
      tile<T, Height, count.value * key_group / lanes>(
          block.queries[r], D, source, 0, D / Dot<T>::depth,
          block.scores[r] + source.first * key_group, key_tile, Start::zero);
    });
  }

  template <int Height, class Source>
  static void add_values(Block& block, int r, const Tile<S>& now, const Source& source) {
    constexpr int depth = Dot<T>::depth;
    const Range keys = visible<Height>(block, r, now);
    if (keys.begin >= keys.end) return;
    tile<T, Height, padded / lanes>(block.weights[r], key_tile, source, keys.begin / depth,
                                    (keys.end + depth - 1) / depth, block.sums[r], padded,
                                    Start::resume);
  }

  // Whether a row sees nothing of a tile.
  static bool blind(const Row& row, int tile_start) {
    return row.first - tile_start >= key_tile || row.end <= tile_start;
  }

  // A score in units of log2.
  vf units(const Block& block, int r, int v) const {
    constexpr float log2_e = 1.44269504f;
    const vf x = block.reader.scale_scores(load(block.scores[r] + v * lanes), v);
    if constexpr (Capped)
      return tanh(x * splat(scale / softcap)) * splat(softcap * log2_e);
    else
      return x * splat(scale * log2_e);
  }

  // Brings a row's scores into units, -inf where a key is not visible, and rescales what was summed
  // under a smaller largest score. A pass of its own: what one row waits for, the next ones hide.
  void find_largest(Block& block, int r, int tile_start) const {
    constexpr int vectors = key_tile / lanes;
    const Row& row = block.rows[r];
    if (blind(row, tile_start)) return;
    const int begin = row.first - tile_start, end = row.end - tile_start;
    vf score[vectors];
    for (int v = 0; v < vectors; ++v) score[v] = units(block, r, v);
    if (begin > 0 || end < key_tile)
      for (int v = 0; v < vectors; ++v)
        score[v] = keep(score[v], begin - v * lanes, end - v * lanes, splat(-__builtin_inff()));
    vf top = score[0];
    for (int v = 1; v < vectors; ++v) top = max(top, score[v]);
    for (int v = 0; v < vectors; ++v) store(block.scores[r] + v * lanes, score[v]);
    raise(block, r, first(round_even(splat(maximum(top)))));
  }

  // Turns a row's scores into weights. The total is that of the weights as rounded.
  static void weigh(Block& block, int r, int tile_start) {
    constexpr int vectors = key_tile / lanes;
    T* weights = block.weights[r];
    if (blind(block.rows[r], tile_start)) {
      for (int v = 0; v < vectors; ++v) store(weights + v * lanes, zero());
      return;
    }
    const vf largest = splat(block.rows[r].largest);
    vf total = load(block.totals[r]);
    for (int v = 0; v < vectors; ++v) {
      store(weights + v * lanes, exp2(load(block.scores[r] + v * lanes) - largest));
      total = total + load(weights + v * lanes);
    }
    store(block.totals[r], total);
  }

  static void raise(Block& block, int r, float largest) {
    Row& row = block.rows[r];
    if (!(largest > row.largest)) return;
    const float before = row.largest;
    row.largest = largest;
    if (before == -__builtin_inff()) return;  // nothing is summed yet
    const vf factor = exp2(splat(before - largest));
    store(block.totals[r], load(block.totals[r]) * factor);
    float* sums = block.sums[r];
    for (int d = 0; d < padded; d += lanes) store(sums + d, load(sums + d) * factor);
  }

  static void scale_weights(Block& block) {
    for (int r = 0; r < block.count; ++r)
      for (int v = 0; v < key_tile / lanes; ++v) {
        T* weights = block.weights[r] + v * lanes;
        store(weights, block.reader.scale_weights(load(weights), v));
      }
  }
};

// Stores a head as it is.
template <int D, class Out>
struct StoreHead {
  Rows<Out> out;

  void take(int row, int column, const float* head) const {
    for_columns<D>([&](int c, auto part) {
      store(out[row] + column + c, load(head + c, part), part);
    });
  }
};

// Rounds it to int8 in groups.
template <int D, int group>
struct QuantizeHead {
  static_assert(D % group == 0, "groups are a head's");
  Rows<std::int8_t> values;
  Rows<float> scales;

  void take(int row, int column, const float* head) const {
    quantize_row<D, group>(head, values[row] + column, scales[row] + column / group);
  }
};

template <int Heads, int Window, bool Capped, class T, class S, int KvHeads, int PageSize, int D,
          class Out>
[[gnu::noinline, gnu::noipa]]
void paged_attention(Team team, Rows<const T> q, Cache<S, KvHeads, PageSize, D> cache,
                     Sequences sequences, float scale, float softcap, Rows<Out> out) {
  PagedAttention<T, S, Heads, KvHeads, PageSize, D, Window, Capped>{sequences, cache, scale,
                                                                    softcap}
      .run(team, q, StoreHead<D, Out>{out});
}

template <int Heads, int Window, bool Capped, int group, class T, class S, int KvHeads,
          int PageSize, int D>
[[gnu::noinline, gnu::noipa]]
void paged_attention_quantize(Team team, Rows<const T> q, Cache<S, KvHeads, PageSize, D> cache,
                              Sequences sequences, float scale, float softcap,
                              Rows<std::int8_t> values, Rows<float> scales) {
  PagedAttention<T, S, Heads, KvHeads, PageSize, D, Window, Capped>{sequences, cache, scale,
                                                                    softcap}
      .run(team, q, QuantizeHead<D, group>{values, scales});
}

}  // namespace ingot
