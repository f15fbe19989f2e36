// The few tokens of a row that can be drawn. A threshold finds them, and they are cut to size
// without sorting the vocabulary.
#pragma once

#include <algorithm>

#include "vocabulary.h"

namespace ingot {

// Tokens in ascending order, with their logits or weights. Arrays have room for a vector more.
struct Candidates {
  float* values;
  std::int32_t* ids;
  int count;

  Span span() const { return {values, 0, count}; }
};

// Adds the tokens whose logit reaches the limit.
inline void collect(Candidates& to, const float* logits, int size, const float* maxima,
                    float limit) {
  for (int block = 0; block < num_blocks(size); ++block) {
    if (!(maxima[block] >= limit)) continue;
    for_vectors(block_of(logits, size, block), [&](int i, vf v, int) {
      const Lanes set = at_least(v, limit);
      pack(to.values + to.count, v, set);
      pack_ids(to.ids + to.count, i, set);
      to.count += count(set);
    });
  }
}

// Drops the candidates below the limit.
inline void keep_at_least(Candidates& list, float limit) {
  int kept = 0;
  for_vectors(list.span(), [&](int i, vf v, int) {
    const Lanes set = at_least(v, limit);
    pack(list.values + kept, v, set);
    pack(list.ids + kept, list.ids + i, set);
    kept += count(set);
  });
  list.count = kept;
}

// Drops so many of the candidates that have this value, the last ones first.
inline void drop_last(Candidates& list, float value, std::uint64_t how_many) {
  int from = list.count;
  while (how_many > 0)
    if (list.values[--from] == value) --how_many;
  int to = from;
  while (++from < list.count) {
    if (list.values[from] == value) continue;
    list.values[to] = list.values[from];
    list.ids[to++] = list.ids[from];
  }
  list.count = to;
}

// What `cut` adds up: either every logit counts as one, or every weight as its mass. The middle of
// two weights is close to the middle of their logits.
struct ByCount {
  static std::uint64_t of(float) { return 1; }
  static std::uint64_t of(Span span) { return static_cast<std::uint64_t>(span.end); }
  static float middle(float low, float high) { return low * 0.5f + high * 0.5f; }
};
struct ByMass {
  static std::uint64_t of(float weight) { return mass_of(weight); }
  static std::uint64_t of(Span span) {
    Mass mass;
    for_vectors(span, [&](int, vf v, int n) { mass.add(keep(v, 0, n, zero())); });
    return mass.total();
  }
  static float middle(float low, float high) { return std::sqrt(low) * std::sqrt(high); }
};

struct Cut {
  float value;          // the largest value at which the sum from the top reaches the goal
  std::uint64_t above;  // the sum of what is larger
};

// Halves the range of values around the cut until it is found. Each pass reads only the half that
// is left. `upper` and `lower` have room for all values and a vector more.
template <class Measure>
inline Cut cut(const float* values, int size, std::uint64_t goal, float* upper, float* lower) {
  constexpr int few = 64;
  Span rest{values, 0, size};
  vf smallest = splat(HUGE_VALF), largest = splat(-HUGE_VALF);
  for_vectors(rest, [&](int, vf v, int n) {
    smallest = min(smallest, keep(v, 0, n, smallest));
    largest = max(largest, v);
  });
  float low = -maximum(zero() - smallest), high = maximum(largest);
  std::uint64_t above = 0;
  while (rest.end > few && low < high) {
    float middle = Measure::middle(low, high);
    if (!(middle > low && middle <= high)) middle = high;
    int up = 0, down = 0;
    for_vectors(rest, [&](int, vf v, int n) {
      const Lanes set = at_least(v, middle), below = others(set, n);
      pack(upper + up, v, set);
      pack(lower + down, v, below);
      up += count(set);
      down += count(below);
    });
    const std::uint64_t sum = Measure::of(Span{upper, 0, up});
    if (above + sum >= goal) {
      rest = {upper, 0, up};
      low = middle;
    } else {
      above += sum;
      rest = {lower, 0, down};
      high = std::nextafterf(middle, -HUGE_VALF);
    }
  }
  if (rest.end > few) return {low, above};  // all that is left is equal
  std::copy(rest.data, rest.data + rest.end, upper);
  std::sort(upper, upper + rest.end, [](float a, float b) { return a > b; });
  for (int i = 0;;) {
    int end = i;
    while (end < rest.end && upper[end] == upper[i]) ++end;
    const std::uint64_t sum = static_cast<std::uint64_t>(end - i) * Measure::of(upper[i]);
    if (above + sum >= goal || end == rest.end) return {upper[i], above};
    above += sum;
    i = end;
  }
}

}  // namespace ingot
