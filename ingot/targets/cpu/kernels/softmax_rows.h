// Rows of queries and what attention knows of them so far: an online softmax over tiles of keys.
//
// A weight is 2^(score - n), where n is the largest score so far, rounded to a whole number. A
// larger n rescales sums exactly. So neither the tiles nor keys that a row cannot see change its
// result by one bit. A row's sink joins the sum of the weights when all keys are visited.
#pragma once

#include <cstring>

#include "math.h"
#include "tile.h"

namespace ingot {

inline constexpr int key_tile = 64;

// How products of queries and keys become scores. The cap is used only if there is one.
struct Scoring {
  float scale, softcap;
};

// At most Most rows. T: what queries, keys and values are multiplied in; D and V: sizes of a key
// and of a value. Who inherits it computes the scores, and sums the values by the weights.
template <class T, int D, int V, int Most, bool Capped>
class SoftmaxRows {
 public:
  static constexpr int most_rows = Most;

  int count;

  // Appends a query that sees the keys [first, end); a sink of -inf is none.
  void add(const T* query, int first, int end, float sink) {
    const int r = count++;
    std::memcpy(queries_[r], query, sizeof queries_[r]);
    for (int d = 0; d < padded; d += lanes) store(sums_[r] + d, zero());
    store(totals_[r], zero());
    rows_[r] = {first, end, -__builtin_inff(), sink * log2_e};
  }

  // Follows the last row.
  void ready() const {}

  // The result of a row that has visited all keys that it sees. The caller may overwrite it.
  float* result(int r) {
    const vf inverse = splat(1.0f / (sum(load(totals_[r])) + sink_weight(rows_[r])));
    // Adding 0 turns -0 into 0, as a key that is not visible may have done already.
    for (int c = 0; c < padded; c += lanes)
      store(sums_[r] + c, load(sums_[r] + c) * inverse + zero());
    return sums_[r];
  }

 protected:
  static constexpr int padded = (V + lanes - 1) / lanes * lanes;

  // The keys of a tile that at least one of the rows [r, r + height) sees.
  Range visible(int r, int height, int tile_start) const {
    const int first = rows_[r].first - tile_start;
    const int end = rows_[r + height - 1].end - tile_start;
    return {first > 0 ? first : 0, end < key_tile ? end : key_tile};
  }

  // Turns the scores of some rows and a tile into weights. `scale` is applied to vectors of scores
  // first.
  template <class Scale>
  void find_weights(Range rows, int tile_start, Scoring scoring, Scale scale) {
    for (int r = rows.begin; r < rows.end; ++r) find_largest(r, tile_start, scoring, scale);
    for (int r = rows.begin; r < rows.end; ++r) weigh(r, tile_start);
  }

  alignas(64) T queries_[most_rows][D];
  alignas(64) float sums_[most_rows][padded];
  alignas(64) float scores_[most_rows][key_tile];
  alignas(64) T weights_[most_rows][key_tile];

 private:
  static constexpr float log2_e = 1.44269504f;

  // A row's visible keys [first, end), the largest score so far as a whole number, and its sink.
  struct Row {
    int first, end;
    float largest, sink;  // in units of log2
  };

  // Beside a sink that is larger than what exp2 takes, no key has a weight that counts.
  static float sink_weight(const Row& row) {
    return first(exp2(min(splat(127.0f), splat(row.sink - row.largest))));
  }

  // Whether a row sees nothing of a tile.
  static bool blind(const Row& row, int tile_start) {
    return row.first - tile_start >= key_tile || row.end <= tile_start;
  }

  // A score in units of log2.
  static vf units(vf x, Scoring scoring) {
    if constexpr (Capped)
      return fma(x, zero(), tanh(x * splat(scoring.scale / scoring.softcap)) *
                                splat(scoring.softcap * log2_e));  // tanh would forget NaN
    else
      return x * splat(scoring.scale * log2_e);
  }

  // Brings a row's scores into units of log2, with -inf for keys that are not visible, and rescales
  // what was summed under a smaller n. It is a pass of its own, so that rows hide each other's
  // waits.
  template <class Scale>
  void find_largest(int r, int tile_start, Scoring scoring, Scale scale) {
    constexpr int vectors = key_tile / lanes;
    const Row& row = rows_[r];
    if (blind(row, tile_start)) return;
    const int begin = row.first - tile_start, end = row.end - tile_start;
    vf score[vectors];
    for (int v = 0; v < vectors; ++v)
      score[v] = units(scale(load(scores_[r] + v * lanes), v), scoring);
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

  alignas(64) float totals_[most_rows][lanes];
  Row rows_[most_rows];
};

}  // namespace ingot
