// Rows of queries and what attention knows of them so far: an online softmax over tiles of keys.
//
// A weight is 2^(score - n), where n is the largest score so far, rounded to a whole number. A
// larger n rescales sums exactly. So neither the tiles nor keys that a row cannot see change its
// result by one bit. A row's sink joins the sum of the weights when all keys are visited.
#pragma once

#include <cstring>

#include "math.h"
#include "tile.h"
#include "tile_reader.h"

namespace ingot {

// How products of queries and keys become scores. The cap is used only if there is one.
struct Scoring {
  float scale, softcap;
};

// The rows of one KV head. T: what queries, keys and values are multiplied in; S: what the cache
// stores. It takes 100 KiB with D = 128 and two bytes an element.
template <class T, class S, int D, bool Capped>
class QueryRows {
 public:
  static constexpr int most_rows = D <= 256 ? 48 : 24;

  int count;

  // Appends a query that sees the keys [first, end); a sink of -inf is none.
  void add(const T* query, int first, int end, float sink) {
    const int r = count++;
    std::memcpy(queries_[r], query, sizeof queries_[r]);
    for (int d = 0; d < padded; d += lanes) store(sums_[r] + d, zero());
    store(totals_[r], zero());
    rows_[r] = {first, end, -__builtin_inff(), sink * log2_e};
  }

  // The result of a row that has visited all keys that it sees. The caller may overwrite it.
  float* result(int r) {
    const vf inverse = splat(1.0f / (sum(load(totals_[r])) + sink_weight(rows_[r])));
    // Adding 0 turns -0 into 0, as a key that is not visible may have done already.
    for (int c = 0; c < padded; c += lanes)
      store(sums_[r] + c, load(sums_[r] + c) * inverse + zero());
    return sums_[r];
  }

  // Each product runs for all rows before the next, so that the L1 cache keeps what rows share.
  void visit(const Tile<S>& now, const Tile<S>& next, Scoring scoring) {
    const bool once = count <= stream_once_rows();
    reader_.keys(now, once, [&](const auto& keys, const auto& fetched) {
      score_all(now, keys, fetched);
    });
    for (int r = 0; r < count; ++r) find_largest(r, now.start, scoring);
    for (int r = 0; r < count; ++r) weigh(r, now.start);
    reader_.values(now, next, once, [&](const auto& values, const auto& fetched) {
      if constexpr (is_scaled<S>) scale_weights();
      add_all(now, values, fetched);
    });
  }

 private:
  static constexpr int padded = (D + lanes - 1) / lanes * lanes;
  static constexpr int tile_rows = max_tile_rows<T>;
  static constexpr float log2_e = 1.44269504f;

  // So few rows that the sums of a whole head fit in registers: then values are read line by line.
  static constexpr int stream_once_rows() {
    for (int rows = tile_rows; rows >= 3; --rows)
      if (tile_vectors(rows) * lanes >= D) return rows;
    return tile_rows;
  }

  // A row's visible keys [first, end), the largest score so far as a whole number, and its sink.
  struct Row {
    int first, end;
    float largest, sink;  // in units of log2
  };

  // Beside a sink that is larger than what exp2 takes, no key has a weight that counts.
  static float sink_weight(const Row& row) {
    return first(exp2(min(splat(127.0f), splat(row.sink - row.largest))));
  }

  template <class Element>
  void score_all(const Tile<S>& now, const Groups<Element>& keys, const Groups<Element>& fetched) {
    constexpr int most = std::is_same_v<Element, T> ? tile_rows : stream_once_rows();
    for_row_tiles<most>(count, [&](auto height, int r, int) {
      score<height.value>(r, now, KeySource<T, Element>{keys, r == 0 ? fetched : keys, 0});
    });
  }

  template <class Element>
  void add_all(const Tile<S>& now, const Groups<Element>& values, const Groups<Element>& fetched) {
    for_row_tiles<stream_once_rows()>(count, [&](auto height, int r, int) {
      add_values<height.value>(r, now,
                               ValueSource<T, Element, D>{values, r == 0 ? fetched : values});
    });
  }

  // The keys of a tile that at least one of the rows [r, r + Height) sees.
  template <int Height>
  Range visible(int r, const Tile<S>& now) const {
    const int first = rows_[r].first - now.start;
    const int end = rows_[r + Height - 1].end - now.start;
    return {first > 0 ? first : 0, end < key_tile ? end : key_tile};
  }

  template <int Height, class Source>
  void score(int r, const Tile<S>& now, Source source) {
    const Range keys = visible<Height>(r, now);
    if (keys.begin >= keys.end) return;
    source.first = keys.begin / key_group;
    const int groups = (keys.end - 1) / key_group + 1 - source.first;
    with_rows<groups_per_tile>(groups, [&](auto width) {
      tile<T, Height, width.value * key_group / lanes>(
          queries_[r], D, source, 0, D / Dot<T>::depth,
          scores_[r] + source.first * key_group, key_tile, Start::zero);
    });
  }

  template <int Height, class Source>
  void add_values(int r, const Tile<S>& now, const Source& source) {
    constexpr int depth = Dot<T>::depth;
    const Range keys = visible<Height>(r, now);
    if (keys.begin >= keys.end) return;
    tile<T, Height, padded / lanes>(weights_[r], key_tile, source, keys.begin / depth,
                                    (keys.end + depth - 1) / depth, sums_[r], padded,
                                    Start::resume);
  }

  // Whether a row sees nothing of a tile.
  static bool blind(const Row& row, int tile_start) {
    return row.first - tile_start >= key_tile || row.end <= tile_start;
  }

  // A score in units of log2.
  vf units(int r, int v, Scoring scoring) const {
    const vf x = reader_.scale_scores(load(scores_[r] + v * lanes), v);
    if constexpr (Capped)
      return fma(x, zero(), tanh(x * splat(scoring.scale / scoring.softcap)) *
                                splat(scoring.softcap * log2_e));  // tanh would forget NaN
    else
      return x * splat(scoring.scale * log2_e);
  }

  // Brings a row's scores into units of log2, with -inf for keys that are not visible, and rescales
  // what was summed under a smaller n. It is a pass of its own, so that rows hide each other's
  // waits.
  void find_largest(int r, int tile_start, Scoring scoring) {
    constexpr int vectors = key_tile / lanes;
    const Row& row = rows_[r];
    if (blind(row, tile_start)) return;
    const int begin = row.first - tile_start, end = row.end - tile_start;
    vf score[vectors];
    for (int v = 0; v < vectors; ++v) score[v] = units(r, v, scoring);
    if (begin > 0 || end < key_tile)
      for (int v = 0; v < vectors; ++v)
        score[v] = keep(score[v], begin - v * lanes, end - v * lanes, splat(-__builtin_inff()));
    vf top = score[0];
    for (int v = 1; v < vectors; ++v) top = max(top, score[v]);
    for (int v = 0; v < vectors; ++v) store(scores_[r] + v * lanes, score[v]);
    raise(r, first(round_even(splat(maximum(top)))));
  }

  // Turns a row's scores into weights. The total is the sum of the rounded weights.
  void weigh(int r, int tile_start) {
    constexpr int vectors = key_tile / lanes;
    T* weights = weights_[r];
    if (blind(rows_[r], tile_start)) {
      for (int v = 0; v < vectors; ++v) store(weights + v * lanes, zero());
      return;
    }
    const vf largest = splat(rows_[r].largest);
    vf total = load(totals_[r]);
    for (int v = 0; v < vectors; ++v) {
      store(weights + v * lanes, exp2(load(scores_[r] + v * lanes) - largest));
      total = total + load(weights + v * lanes);
    }
    store(totals_[r], total);
  }

  void raise(int r, float largest) {
    Row& row = rows_[r];
    if (!(largest > row.largest)) return;
    const float before = row.largest;
    row.largest = largest;
    if (before == -__builtin_inff()) return;  // nothing is summed yet
    const vf factor = exp2(splat(before - largest));
    store(totals_[r], load(totals_[r]) * factor);
    float* sums = sums_[r];
    for (int d = 0; d < padded; d += lanes) store(sums + d, load(sums + d) * factor);
  }

  void scale_weights() {
    for (int r = 0; r < count; ++r)
      for (int v = 0; v < key_tile / lanes; ++v) {
        T* weights = weights_[r] + v * lanes;
        store(weights, reader_.scale_weights(load(weights), v));
      }
  }

  alignas(64) T queries_[most_rows][D];
  alignas(64) float sums_[most_rows][padded];
  alignas(64) float scores_[most_rows][key_tile];
  alignas(64) T weights_[most_rows][key_tile];
  alignas(64) float totals_[most_rows][lanes];
  TileReader<T, S, D> reader_;
  Row rows_[most_rows];
};

}  // namespace ingot
