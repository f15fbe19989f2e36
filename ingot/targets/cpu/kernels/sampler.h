// Draws a token from a row of logits, and says how likely it was.
//
// Edits come first: tokens that are not allowed, biases, penalties, bans. The likelihoods of the
// tokens left are whole multiples of 2^-40 of the largest one, so that every sum is exact. So a
// draw is the same at all levels and in numpy, and does not depend on what was skipped.
#pragma once

#include <algorithm>
#include <utility>

#include "abi.h"
#include "candidates.h"
#include "maxima.h"
#include "random.h"
#include "team.h"

namespace ingot {

// The memory of one thread for rows of a vocabulary.
struct SamplerMemory {
  float *values, *upper, *lower, *raw, *maxima;
  std::int32_t* ids;
  std::uint64_t* masses;

  static std::int64_t bytes(int size) { return 5 * row_bytes(size) + 2 * block_bytes(size); }

  SamplerMemory(void* memory, int size) {
    char* at = static_cast<char*>(memory);
    const auto take = [&](std::int64_t bytes) { return std::exchange(at, at + bytes); };
    values = reinterpret_cast<float*>(take(row_bytes(size)));
    upper = reinterpret_cast<float*>(take(row_bytes(size)));
    lower = reinterpret_cast<float*>(take(row_bytes(size)));
    raw = reinterpret_cast<float*>(take(row_bytes(size)));
    ids = reinterpret_cast<std::int32_t*>(take(row_bytes(size)));
    maxima = reinterpret_cast<float*>(take(block_bytes(size)));
    masses = reinterpret_cast<std::uint64_t*>(take(block_bytes(size)));
  }

 private:
  static std::int64_t row_bytes(int size) { return align((size + lanes) * 4LL); }
  static std::int64_t block_bytes(int size) { return align(num_blocks(size) * 8LL); }
  static std::int64_t align(std::int64_t bytes) { return (bytes + 63) & ~63LL; }
};

inline bool has_edits(const ingot_draw& row) {
  return row.num_allowed >= 0 || row.num_biased > 0 || row.num_seen > 0 || row.num_banned > 0;
}

inline void allow_only(const ingot_draw& row, int size, float* kept) {
  for (int i = 0; i < row.num_allowed; ++i) kept[i] = row.logits[row.allowed[i]];
  std::fill(row.logits, row.logits + size, -HUGE_VALF);
  for (int i = 0; i < row.num_allowed; ++i) row.logits[row.allowed[i]] = kept[i];
}

inline void edit(const ingot_draw& row, int size, const SamplerMemory& memory) {
  if (row.num_allowed >= 0) allow_only(row, size, memory.values);
  for (int i = 0; i < row.num_biased; ++i) row.logits[row.biased[i]] += row.bias[i];
  for (int i = 0; i < row.num_seen; ++i) {
    float& logit = row.logits[row.seen[i]];
    logit = logit > 0 ? logit / row.repetition : logit * row.repetition;
    logit -= static_cast<float>(row.times[i]) * row.frequency;
    if (row.times[i] > 0) logit -= row.presence;
  }
  for (int i = 0; i < row.num_banned; ++i) row.logits[row.banned[i]] = -HUGE_VALF;
}

// Draws from all tokens: the block first, then the token in it.
inline int draw_any(const float* logits, int size, Weights weights, std::uint64_t bits,
                    std::uint64_t* of_block) {
  std::uint64_t rest = random_below(masses(logits, size, weights, of_block), bits);
  int block = 0;
  for (; rest >= of_block[block]; ++block) rest -= of_block[block];
  int token = block * block_tokens;
  for (;; ++token) {
    const std::uint64_t mass = mass_of(weights.of(logits[token]));
    if (rest < mass) return token;
    rest -= mass;
  }
}

inline int draw_one(const Candidates& list, std::uint64_t total, std::uint64_t bits) {
  std::uint64_t rest = random_below(total, bits);
  for (int block = 0;; ++block) {
    const Span span = block_of(list.values, list.count, block);
    const std::uint64_t mass = ByMass::of(span);
    if (rest >= mass) {
      rest -= mass;
      continue;
    }
    int i = span.begin;
    for (; rest >= mass_of(list.values[i]); ++i) rest -= mass_of(list.values[i]);
    return list.ids[i];
  }
}

// The maximum of the k-th largest block is a logit that at least k tokens reach.
inline float reached_by(int k, int blocks, const SamplerMemory& memory) {
  if (k > blocks) return lowest;
  std::copy(memory.maxima, memory.maxima + blocks, memory.upper);
  std::nth_element(memory.upper, memory.upper + k - 1, memory.upper + blocks,
                   [](float a, float b) { return a > b; });
  return std::max(lowest, memory.upper[k - 1]);
}

class Row {
 public:
  // `known`: the maxima of the row's blocks before edits, or null.
  Row(ingot_draw& row, int size, const SamplerMemory& memory, const float* known)
      : row_(row), size_(size), memory_(memory), known_(known) {}

  void run() {
    const bool edited = row_.given < 0 && has_edits(row_), scored = row_.num_logprobs >= 0;
    const float* raw = row_.logits;
    if (edited && scored) {
      raw = memory_.raw;
      std::copy(row_.logits, row_.logits + size_, memory_.raw);
    }
    if (edited) edit(row_, size_, memory_);
    row_.status = survey(row_.logits, edited);
    if (row_.status != 0) return;
    row_.token = row_.given >= 0 ? row_.given : choose();
    if (!scored) return;
    if (edited) row_.status = survey(raw, false);
    if (row_.status == 0) score(raw);
  }

 private:
  std::int32_t survey(const float* logits, bool edited) {
    top_ = maxima(logits, size_, edited ? nullptr : known_, memory_.maxima);
    if (!(top_ < HUGE_VALF)) return ingot_not_finite;
    if (top_ == -HUGE_VALF) return edited ? ingot_nothing_left : ingot_not_finite;
    return 0;
  }

  int choose() {
    const bool greedy = row_.scale == 0;
    if (greedy) return find(row_.logits, size_, memory_.maxima, top_);
    const Weights weights{top_, row_.scale};
    const std::uint64_t bits = random_bits(row_.seed, row_.key, row_.position);
    const bool narrowed = (row_.top_k > 0 && row_.top_k < size_) || row_.min_p > 0;
    if (!narrowed && row_.top_p >= 1)
      return draw_any(row_.logits, size_, weights, bits, memory_.masses);
    Candidates list{memory_.values, memory_.ids, 0};
    std::uint64_t total = 0;
    float limit = bound(static_cast<double>(row_.min_p));
    if (narrowed) {
      if (row_.top_k > 0)
        limit = std::max(limit, reached_by(row_.top_k, num_blocks(size_), memory_));
    } else {
      total = masses(row_.logits, size_, weights, memory_.masses);
      // Tokens rarer than this are together rarer than 1 - top_p.
      limit = bound((1 - row_.top_p) * 0.999 * std::ldexp(static_cast<double>(total), -mass_bits) /
                    size_);
    }
    collect(list, row_.logits, size_, memory_.maxima, limit);
    if (narrowed) keep_top_k(list);
    for_vectors(list.span(), [&](int i, vf v, int) { store(list.values + i, weights.of(v)); });
    if (row_.min_p > 0) keep_at_least(list, row_.min_p);
    if (narrowed) total = ByMass::of(list.span());
    if (row_.top_p < 1) total = keep_top_p(list, total);
    return draw_one(list, total, bits);
  }

  // A logit that a token reaches if its weight reaches this one. Weights of 2^-42 or less are left
  // out, since their mass is 0.
  float bound(double weight) const {
    constexpr double slack = 1e-3;
    const double log = weight > 0x1p-42 ? std::log2(weight) : -42.0;
    const double limit = static_cast<double>(top_) + (log - slack) / static_cast<double>(row_.scale);
    return limit > static_cast<double>(lowest)
               ? std::nextafterf(static_cast<float>(limit), -HUGE_VALF)
               : lowest;
  }

  // Tokens that are as likely as the k-th stay.
  void keep_top_k(Candidates& list) {
    if (row_.top_k <= 0 || row_.top_k >= list.count) return;
    const auto goal = static_cast<std::uint64_t>(row_.top_k);
    const float* values = list.values;
    keep_at_least(list, cut<ByCount>(values, list.count, goal, memory_.upper, memory_.lower).value);
  }

  // Keeps the fewest tokens that together reach top_p. Among equally likely ones the first stay.
  // Returns their sum.
  std::uint64_t keep_top_p(Candidates& list, std::uint64_t total) {
    const double wanted = std::ceil(row_.top_p * static_cast<double>(total));
    const auto goal = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, total);
    const Cut at = cut<ByMass>(list.values, list.count, goal, memory_.upper, memory_.lower);
    keep_at_least(list, at.value);
    const std::uint64_t sum = ByMass::of(list.span()), each = mass_of(at.value);
    const std::uint64_t extra = each > 0 && sum > goal ? (sum - goal) / each : 0;
    if (extra > 0) drop_last(list, at.value, extra);
    return sum - extra * each;
  }

  void score(const float* raw) {
    constexpr float log2_e = 1.44269504f;
    const std::uint64_t total = masses(raw, size_, {top_, log2_e}, memory_.masses);
    const double normalizer = std::log(std::ldexp(static_cast<double>(total), -mass_bits));
    const auto logprob = [&](std::int32_t token) {
      return static_cast<double>(raw[token]) - static_cast<double>(top_) - normalizer;
    };
    row_.logprob = logprob(row_.token);
    row_.rank = 1 + count_above(raw, size_, memory_.maxima, raw[row_.token]);
    const int wanted = std::min(row_.num_logprobs, size_);
    if (wanted == 0) return;
    const Candidates list = likeliest(raw, wanted);
    for (int i = 0; i < wanted; ++i) {
      row_.top_ids[i] = list.ids[i];
      row_.top_logprobs[i] = logprob(list.ids[i]);
    }
  }

  // At least so many tokens, likeliest first; equally likely ones in order.
  Candidates likeliest(const float* raw, int wanted) {
    Candidates list{memory_.values, memory_.ids, 0};
    collect(list, raw, size_, memory_.maxima, reached_by(wanted, num_blocks(size_), memory_));
    if (wanted < list.count) {
      const auto goal = static_cast<std::uint64_t>(wanted);
      const float* values = list.values;
      keep_at_least(list,
                    cut<ByCount>(values, list.count, goal, memory_.upper, memory_.lower).value);
    }
    std::sort(list.ids, list.ids + list.count, [raw](std::int32_t a, std::int32_t b) {
      return raw[a] != raw[b] ? raw[a] > raw[b] : a < b;
    });
    for (int token = 0; list.count < wanted; ++token)  // masked ones, if nothing else is left
      if (raw[token] < lowest) list.ids[list.count++] = token;
    return list;
  }

  ingot_draw& row_;
  const int size_;
  const SamplerMemory& memory_;
  const float* known_;
  float top_ = 0;
};

inline void sample_rows(const ingot_sampling& sampling, Team team, const KnownRows& known) {
  const std::int64_t bytes = SamplerMemory::bytes(sampling.vocabulary);
  const SamplerMemory memory(static_cast<char*>(sampling.memory) + bytes * team.rank,
                             sampling.vocabulary);
  const Range range = share(sampling.num_rows, team);
  for (int i = range.begin; i < range.end; ++i) {
    ingot_draw& row = sampling.rows[i];
    Row(row, sampling.vocabulary, memory, known.of(row.logits)).run();
  }
}

}  // namespace ingot
