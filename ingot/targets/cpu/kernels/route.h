// The experts of each row and their shares; ops/route.py says what they are.
#pragma once

#include <limits>

#include "math.h"
#include "team.h"

namespace ingot {

struct SoftmaxScores {
  template <int Count>
  static void of(float* logits) {
    vf top = splat(-std::numeric_limits<float>::infinity()), total = zero();
    for_columns<Count>([&](int c, auto part) {
      top = max(top, keep(load(logits + c, part), 0, Count - c, top));
    });
    const vf largest = splat(maximum(top));
    for_columns<Count>([&](int c, auto part) {
      const vf power = keep(exp(load(logits + c, part) - largest), 0, Count - c, zero());
      store(logits + c, power, part);
      total = total + power;
    });
    const vf whole = splat(sum(total));
    for_columns<Count>(
        [&](int c, auto part) { store(logits + c, load(logits + c, part) / whole, part); });
  }
};

struct SigmoidScores {
  template <int Count>
  static void of(float* logits) {
    for_columns<Count>(
        [&](int c, auto part) { store(logits + c, sigmoid(load(logits + c, part)), part); });
  }
};

// Where the largest of `count` values is, the first of equals; one that is -inf is none.
inline int place_of_largest(const float* values, int count) {
  float best = -std::numeric_limits<float>::infinity();
  int place = 0;
  for (int i = 0; i < count; ++i)
    if (values[i] > best) best = values[i], place = i;
  return place;
}

template <class Scoring, int Experts, int Picks, int Groups, int Kept, bool TwoLargest,
          bool Normalise>
class Router {
 public:
  float eps, scale;

  void route(float* scores, const float* bias, float* shares) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    Scoring::template of<Experts>(scores);
    for (int e = 0; e < Experts; ++e) {
      const float value = bias == nullptr ? scores[e] : scores[e] + bias[e];
      const float least = -std::numeric_limits<float>::max();
      wanted_[e] = value != value ? infinity : value < least ? least : value;
      shares[e] = 0.0f;
    }
    if constexpr (Kept < Groups) leave_groups();
    for (int e = 0; e < Experts; ++e) picked_[e] = false;
    for (int i = 0; i < Picks; ++i) {
      const int place = place_of_largest(wanted_, Experts);
      picked_[place] = true;
      wanted_[place] = -infinity;
    }
    float total = 0.0f;
    for (int e = 0; e < Experts; ++e)
      if (picked_[e]) total += scores[e];
    for (int e = 0; e < Experts; ++e)
      if (picked_[e]) shares[e] = (Normalise ? scores[e] / (total + eps) : scores[e]) * scale;
  }

 private:
  static constexpr int size = Experts / Groups;

  void leave_groups() {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (int g = 0; g < Groups; ++g) {
      float first = -infinity, second = -infinity;
      for (int e = g * size; e < (g + 1) * size; ++e) {
        const float value = wanted_[e], lower = value > first ? first : value;
        first = value > first ? value : first;
        second = lower > second ? lower : second;
      }
      stays_[g] = false;
      best_[g] = TwoLargest && size > 1 ? first + second : first;
    }
    for (int i = 0; i < Kept; ++i) {
      const int place = place_of_largest(best_, Groups);
      stays_[place] = true;
      best_[place] = -infinity;
    }
    for (int e = 0; e < Experts; ++e)
      if (!stays_[e / size]) wanted_[e] = -infinity;
  }

  float wanted_[Experts], best_[Groups];
  bool picked_[Experts], stays_[Groups];
};

template <class Rule, int Experts, class T>
[[gnu::noinline, gnu::noipa]]
void route(Slice slice, Rows<const T> logits, const float* bias, float eps, float scale,
           Rows<float> shares) {
  struct Memory {
    Rule rule;
    float scores[Experts];
  };
  auto& memory = slice.team.workspace<Memory>();
  memory.rule.eps = eps;
  memory.rule.scale = scale;
  for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
    for_columns<Experts>([&](int c, auto part) {
      store(memory.scores + c, load(logits[row] + c, part), part);
    });
    memory.rule.route(memory.scores, bias, shares[row]);
  }
}

}  // namespace ingot
