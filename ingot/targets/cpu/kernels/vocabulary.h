// Passes over a row of logits in blocks of 256 tokens. What one pass keeps of each block lets the
// next ones skip most blocks.
#pragma once

#include <cfloat>
#include <cmath>

#include "math.h"
#include "pack.h"

namespace ingot {

inline constexpr int block_tokens = 256;
inline constexpr float lowest = -FLT_MAX;

constexpr int num_blocks(int count) { return (count + block_tokens - 1) / block_tokens; }

// A row, or a part of one.
struct Span {
  const float* data;
  int begin, end;
};

inline Span block_of(const float* data, int count, int block) {
  const int begin = block * block_tokens, end = begin + block_tokens;
  return {data, begin, end < count ? end : count};
}

// Calls body(index, vector, valid lanes); lanes beyond the end read as -inf.
template <class Body>
inline void for_vectors(Span span, Body body) {
  int i = span.begin;
  for (; i + lanes <= span.end; i += lanes) body(i, load(span.data + i), lanes);
  if (const int rest = span.end - i; rest > 0)
    body(i, keep(load(span.data + i, rest), 0, rest, splat(-HUGE_VALF)), rest);
}

// How likely tokens are, relative to the likeliest: 2^((logit - top) * scale), relative error 3e-6.
// Every operation is spelled out and none is fused, so that all levels and numpy give the same
// bits. `scale` is log2(e) / temperature.
struct Weights {
  float top, scale;

  vf of(vf logits) const {
    constexpr float c[] = {0.693147182f, 0.240223482f, 0.0555035695f,
                           0.00966637395f, 0.00133908668f};
    const vf x = max(splat(-64.0f), (logits - splat(top)) * splat(scale));
    const vf n = round_even(x);
    const vf f = x - n;
    vf p = splat(c[4]);
    for (int i = 3; i >= 0; --i) p = p * f + splat(c[i]);
    return scale2(p * f + splat(1.0f), n);
  }
  float of(float logit) const { return first(of(splat(logit))); }
};

// The largest logit; NaN if any is NaN.
inline float largest(Span span) {
  vf top = splat(-HUGE_VALF), nan = zero();
  for_vectors(span, [&](int, vf v, int) {
    top = max(top, v);
    nan = nan + min(zero(), max(zero(), v));  // 0, or NaN for NaN
  });
  return maximum(top) + sum(nan);
}

// The largest logit, overall and of each block. Blocks that are `known` to be finite are not read.
inline float maxima(const float* logits, int count, const float* known, float* of_block) {
  const int blocks = num_blocks(count);
  for (int block = 0; block < blocks; ++block)
    of_block[block] = known != nullptr && known[block] < HUGE_VALF
                          ? known[block]
                          : largest(block_of(logits, count, block));
  return largest({of_block, 0, blocks});
}

inline std::uint64_t mass(Span span, Weights weights) {
  Mass mass;
  for_vectors(span, [&](int, vf v, int) { mass.add(weights.of(v)); });
  return mass.total();
}

// The sum of all weights, overall and of each block.
inline std::uint64_t masses(const float* logits, int count, Weights weights,
                            std::uint64_t* of_block) {
  std::uint64_t total = 0;
  for (int block = 0; block < num_blocks(count); ++block)
    total += of_block[block] = mass(block_of(logits, count, block), weights);
  return total;
}

// The first of the likeliest tokens.
inline int find(const float* logits, int count, const float* maxima, float top) {
  int block = 0;
  while (maxima[block] != top) ++block;
  int token = block * block_tokens;
  while (token + 1 < count && logits[token] != top) ++token;
  return token;
}

// How many logits are larger than this one.
inline int count_above(const float* logits, int size, const float* maxima, float logit) {
  const float next = std::nextafterf(logit, HUGE_VALF);
  int above = 0;
  for (int block = 0; block < num_blocks(size); ++block)
    if (maxima[block] >= next)
      for_vectors(block_of(logits, size, block),
                  [&](int, vf v, int) { above += count(at_least(v, next)); });
  return above;
}

}  // namespace ingot
