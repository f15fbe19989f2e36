// Rows of queries and what attention knows of them so far: an online softmax over tiles of keys.
//
// A weight is 2^(score - n), where n is a whole number near the largest score so far: it rises to
// a score that exceeds it by more than 32, which rescales sums exactly. So neither the rows of a
// block nor keys that a row cannot see change its result by one bit. A row's sink joins the sum of
// the weights when all keys are visited.
//
// Sums begin anew in each chunk of keys, and join those of the chunks before it. So the chunks of a
// long context may be summed by several threads, and the bits are the same.
#pragma once

#include <cstring>
#include <type_traits>

#include "math.h"
#include "tile.h"

namespace ingot {

inline constexpr int key_tile = 64;  // the keys that rows visit at once in vectors

// How products of queries and keys become scores. The cap is used only if there is one.
struct Scoring {
  float scale, softcap;
};

// What attention knows of at most Most rows. T: what queries, keys and values are multiplied in; D
// and V: sizes of a query and of a value. A query is filled up with zeros to Stored elements.
template <class T, int D, int V, int Most, bool Capped, int Stored = D>
class SoftmaxRows {
 public:
  static constexpr int most_rows = Most;

  int count;

  // Before the first row of a step.
  void begin() {}

  // Appends a query that sees the keys [first, end); a sink of -inf is none. T holds it exactly.
  template <class Query>
  void add(const Query* query, int first, int end, float sink) {
    const int r = count++;
    if constexpr (std::is_same_v<Query, T>)
      std::memcpy(queries_[r], query, D * sizeof(T));
    else
      for_columns<D>([&](int d, auto part) {
        store(queries_[r] + d, load(query + d, part), part);
      });
    std::memset(queries_[r] + D, 0, (Stored - D) * sizeof(T));
    for (int d = 0; d < sums_stride; d += lanes) store(sums_[r] + d, zero());
    rows_[r] = {first, end, -__builtin_inff(), sink * log2_e};
  }

  // Follows the last row.
  void ready() const {}

  // What is known of a row in some of the keys that it sees.
  struct alignas(64) Part {
    float sums[(V + lanes - 1) / lanes * lanes + lanes], base;
  };

  // What is known of all rows in the chunk that was visited.
  void store_parts(Part* to) const {
    for (int r = 0; r < count; ++r) {
      std::memcpy(to[r].sums, sums_[r], sizeof to[r].sums);
      to[r].base = rows_[r].base;
    }
  }
  void load_parts(const Part* from) {
    for (int r = 0; r < count; ++r) load_part(r, from[r]);
  }

  // Begins a chunk behind others, of which all that is known is put aside.
  void put_aside(Part* to) {
    store_parts(to);
    for (int r = 0; r < count; ++r) {
      for (int d = 0; d < sums_stride; d += lanes) store(sums_[r] + d, zero());
      rows_[r].base = -__builtin_inff();
    }
  }

  // Ends a chunk that begins with that key: adds what was put aside before.
  void join(int begin, const Part* aside) {
    for (int r = 0; r < count; ++r) {
      if (rows_[r].first >= begin) continue;  // it has seen nothing before
      if (rows_[r].end <= begin)
        load_part(r, aside[r]);
      else
        join_part(r, aside[r]);
    }
  }

  // The result of a row that has visited all keys that it sees. The caller may overwrite it.
  float* result(int r) {
    const vf inverse = splat(1.0f / (sum(load(total(r))) + sink_weight(rows_[r])));
    // Adding 0 turns -0 into 0, as a key that is not visible may have done already.
    for (int c = 0; c < padded; c += lanes)
      store(sums_[r] + c, load(sums_[r] + c) * inverse + zero());
    return sums_[r];
  }

 protected:
  static constexpr int padded = (V + lanes - 1) / lanes * lanes;
  static constexpr int sums_stride = padded + lanes;

  // The sums of a row's weights, one in each lane.
  float* total(int r) { return sums_[r] + padded; }
  // What its weights are relative to, in units of log2.
  float base(int r) const { return rows_[r].base; }

  // The keys of a tile of `keys` that at least one of the rows [r, r + height) sees.
  Range visible(int r, int height, int tile_start, int keys = key_tile) const {
    const int first = rows_[r].first - tile_start;
    const int end = rows_[r + height - 1].end - tile_start;
    return {first > 0 ? first : 0, end < keys ? end : keys};
  }

  // Whether a row sees no key of [start, start + keys).
  bool blind(int r, int start, int keys) const {
    return rows_[r].first - start >= keys || rows_[r].end <= start;
  }

  // Whether the rows [r, r + height) see all keys of [start, start + keys).
  bool all_see(int r, int height, int start, int keys) const {
    return rows_[r + height - 1].first <= start && rows_[r].end >= start + keys;
  }

  // Scores of the keys from `start` on, in units of log2, with -inf for those that are not visible,
  // if some may be. `scale` is applied to vectors of `scores` first. What was summed under a
  // smaller n is rescaled.
  template <int Vectors, bool Masked = true, class Scale>
  [[gnu::always_inline]] void read_scores(int r, const float* scores, int start, Scoring scoring,
                                          Scale scale, vf (&score)[Vectors]) {
    const int begin = rows_[r].first - start, end = rows_[r].end - start;
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) score[v] = units(scale(load(scores + v * lanes), v), scoring);
    if (Masked && (begin > 0 || end < Vectors * lanes))
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v)
        score[v] = keep(score[v], begin - v * lanes, end - v * lanes, splat(-__builtin_inff()));
    vf top = score[0];
#pragma GCC unroll 8
    for (int v = 1; v < Vectors; ++v) top = max(top, score[v]);
    if (any_above(top, rows_[r].base + 32.0f)) raise(r, first(round_even(splat(maximum(top)))));
  }

  alignas(64) T queries_[most_rows][Stored];
  alignas(64) float sums_[most_rows][sums_stride];  // of values, and behind them of weights

 private:
  static constexpr float log2_e = 1.44269504f;

  void load_part(int r, const Part& part) {
    std::memcpy(sums_[r], part.sums, sizeof part.sums);
    rows_[r].base = part.base;
  }

  // Factors are powers of two, so that products are exact.
  void join_part(int r, const Part& before) {
    const vf bases[] = {splat(before.base), splat(rows_[r].base)};
    const vf base = max(bases[0], bases[1]);
    const vf factors[] = {exp2(bases[0] - base), exp2(bases[1] - base)};
    for (int d = 0; d < sums_stride; d += lanes)
      store(sums_[r] + d,
            fma(load(before.sums + d), factors[0], load(sums_[r] + d) * factors[1]));
    rows_[r].base = first(base);
  }

  // A row's visible keys [first, end), what its weights are relative to, and its sink.
  struct Row {
    int first, end;
    float base, sink;  // in units of log2
  };

  // Beside a sink that is larger than what exp2 takes, no key has a weight that counts.
  static float sink_weight(const Row& row) {
    return first(exp2(min(splat(127.0f), splat(row.sink - row.base))));
  }

  // A score in units of log2.
  static vf units(vf x, Scoring scoring) {
    if constexpr (Capped)
      return fma(x, zero(), tanh(x * splat(scoring.scale / scoring.softcap)) *
                                splat(scoring.softcap * log2_e));  // tanh would forget NaN
    else
      return x * splat(scoring.scale * log2_e);
  }

  void raise(int r, float base) {
    const float before = rows_[r].base;
    rows_[r].base = base;
    if (before == -__builtin_inff()) return;  // nothing is summed yet
    const vf factor = exp2(splat(before - base));
    for (int d = 0; d < sums_stride; d += lanes) store(sums_[r] + d, load(sums_[r] + d) * factor);
  }

  Row rows_[most_rows];
};

// The same with the scores and weights of all rows for one tile of keys. Who inherits it computes
// the scores, and sums the values by the weights, which are rounded.
template <class T, int D, int V, int Most, bool Capped, class Rounded = T>
class WeightedRows : public SoftmaxRows<T, D, V, Most, Capped> {
 public:
  static constexpr int keys_at_once = key_tile;

 protected:
  // Turns the scores of some rows and a tile into weights. `scale` is applied to vectors of scores
  // first.
  template <class Scale>
  void find_weights(Range rows, int tile_start, Scoring scoring, Scale scale) {
    for (int r = rows.begin; r < rows.end; ++r) find_largest(r, tile_start, scoring, scale);
    for (int r = rows.begin; r < rows.end; ++r) weigh(r, tile_start);
  }

  // Rounded, where a T would hold more.
  static vf weight(vf v) {
    if constexpr (std::is_same_v<T, Rounded>)
      return v;
    else
      return rounded<Rounded>(v);
  }

  alignas(64) float scores_[Most][key_tile];
  alignas(64) T weights_[Most][key_tile];

 private:
  static constexpr int key_vectors = key_tile / lanes;

  // It is a pass of its own, so that rows hide each other's waits.
  template <class Scale>
  void find_largest(int r, int tile_start, Scoring scoring, Scale scale) {
    if (this->blind(r, tile_start, key_tile)) return;
    vf score[key_vectors];
    this->read_scores(r, scores_[r], tile_start, scoring, scale, score);
    for (int v = 0; v < key_vectors; ++v) store(scores_[r] + v * lanes, score[v]);
  }

  // Turns a row's scores into weights. The total is the sum of the rounded weights.
  void weigh(int r, int tile_start) {
    T* weights = weights_[r];
    if (this->blind(r, tile_start, key_tile)) {
      for (int v = 0; v < key_vectors; ++v) store(weights + v * lanes, zero());
      return;
    }
    const vf base = splat(this->base(r));
    vf total = load(this->total(r));
    for (int v = 0; v < key_vectors; ++v) {
      store(weights + v * lanes, weight(exp2(load(scores_[r] + v * lanes) - base)));
      total = total + load(weights + v * lanes);
    }
    store(this->total(r), total);
  }
};

}  // namespace ingot
