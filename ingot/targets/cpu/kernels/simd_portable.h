// Any machine: vectors of four floats in the compilers' own vector extension, which becomes SSE2,
// NEON or plain scalars. See simd.h for the contract.
#pragma once

#include <cstdint>
#include <cstring>

#include "bf16.h"

namespace ingot {

inline constexpr int lanes = 4;
using vf = float __attribute__((vector_size(16)));
using vi = std::int32_t __attribute__((vector_size(16)));

inline vi bits_of(vf v) {
  vi bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
}
inline vf float_of(vi bits) {
  vf v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

inline vf zero() { return vf{}; }
inline vf splat(float x) { return vf{x, x, x, x}; }

inline vf load(const float* from) {
  vf v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline vf load(const float* from, int n) {
  float padded[lanes] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(n) * sizeof(float));
  return load(padded);
}
inline vf load(const bf16* from) {
  const vi halves = {from[0].bits, from[1].bits, from[2].bits, from[3].bits};
  return float_of(halves << 16);
}
inline vf load(const bf16* from, int n) {
  bf16 padded[lanes] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(n) * sizeof(bf16));
  return load(padded);
}

inline vf load(const std::int8_t* from) {
  return vf{static_cast<float>(from[0]), static_cast<float>(from[1]),
            static_cast<float>(from[2]), static_cast<float>(from[3])};
}
inline vf load(const std::int8_t* from, int n) {
  std::int8_t padded[lanes] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(n));
  return load(padded);
}

inline void store(float* to, vf v) { std::memcpy(to, &v, sizeof v); }
inline void store(float* to, vf v, int n) {
  std::memcpy(to, &v, static_cast<std::size_t>(n) * sizeof(float));
}
inline void store(bf16* to, vf v, int n) {
  for (int i = 0; i < n; ++i) {
    std::uint32_t bits;
    const float x = v[i];
    std::memcpy(&bits, &x, sizeof bits);
    bits += x == x ? 0x7fff + ((bits >> 16) & 1) : 0x00400000 & ~bits;
    to[i].bits = static_cast<std::uint16_t>(bits >> 16);
  }
}
inline void store(bf16* to, vf v) { store(to, v, lanes); }

inline vf select(vi condition, vf yes, vf no) {
  return float_of((condition & bits_of(yes)) | (~condition & bits_of(no)));
}

inline vf fma(vf a, vf b, vf c) { return a * b + c; }
inline vf min(vf a, vf b) { return select(a < b, a, b); }
inline vf max(vf a, vf b) { return select(a > b, a, b); }
inline vf sqrt(vf v) {
  for (int i = 0; i < lanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
}
// 1.5 * 2^23: adding it drops the bits after the point and leaves the integer in the low bits.
inline constexpr float integer_shift = 12582912.0f;

inline vf round_even(vf v) { return (v + splat(integer_shift)) - splat(integer_shift); }
inline vf scale2(vf a, vf n) {
  const vi integer = bits_of(n + splat(integer_shift)) - bits_of(splat(integer_shift));
  return float_of(bits_of(a) + (integer << 23));
}
inline vf zero_below(vf v, vf x, float limit) { return select(x < splat(limit), zero(), v); }
inline vf keep(vf v, int begin, int end, vf other) {
  const vi lane = {0, 1, 2, 3};
  return select((lane >= begin) & (lane < end), v, other);
}

inline float first(vf v) { return v[0]; }
inline float sum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline vf sums(const vf (&v)[lanes]) { return vf{sum(v[0]), sum(v[1]), sum(v[2]), sum(v[3])}; }
inline float maximum(vf v) {
  const vf halves = max(v, vf{v[2], v[3], v[0], v[1]});
  return halves[0] > halves[1] ? halves[0] : halves[1];
}
inline vf larger_magnitude(vf top, vf v) {
  const vf magnitude = float_of(bits_of(v) & 0x7fffffff);
  return select(bits_of(top) > bits_of(magnitude), top, magnitude);
}
inline float largest_magnitude(vf v) {
  const vf halves = larger_magnitude(v, vf{v[2], v[3], v[0], v[1]});
  return first(larger_magnitude(halves, vf{halves[1], halves[0], halves[3], halves[2]}));
}
inline bool any_above(vf v, float limit) {
  return v[0] > limit || v[1] > limit || v[2] > limit || v[3] > limit;
}

inline std::uint32_t read_pair(const bf16* from) {
  return from[0].bits | static_cast<std::uint32_t>(from[1].bits) << 16;
}

inline constexpr bool multiplies_pairs = false;
struct pairs {
  vf even, odd;
};

inline pairs join_pairs(vf even, vf odd) { return {even, odd}; }
inline pairs zip_pairs(const bf16* even, const bf16* odd) { return {load(even), load(odd)}; }
inline pairs zip_pairs(const bf16* even, const bf16* odd, int n) {
  return {load(even, n), load(odd, n)};
}
inline pairs split(vi both) { return {float_of(both << 16), float_of(both & -0x10000)}; }
inline pairs load_pairs(const bf16* from) {
  vi both;
  std::memcpy(&both, from, sizeof both);
  return split(both);
}
inline pairs load_pairs(const bf16* from, int n) {
  bf16 padded[2 * lanes] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(n) * 2 * sizeof(bf16));
  return load_pairs(padded);
}
inline vf split_pairs(const bf16* from, int odd) {
  const pairs both = load_pairs(from);
  return odd != 0 ? both.odd : both.even;
}
inline vf split_pairs(const bf16* from, int odd, int n) {
  const pairs both = load_pairs(from, n);
  return odd != 0 ? both.odd : both.even;
}
inline pairs splat_pair(std::uint32_t pair) {
  const auto both = static_cast<std::int32_t>(pair);
  return split(vi{both, both, both, both});
}
inline vf dot(vf acc, pairs w, pairs x) { return fma(w.odd, x.odd, fma(w.even, x.even, acc)); }

inline void store_alternate(bf16* to, const bf16* from, int odd, int n) {
  for (int i = 0; i < n; ++i) to[2 * i + odd] = from[i];
}
inline void store_pairs(bf16* to, pairs both) {
  for (int i = 0; i < lanes; ++i) {
    to[2 * i].bits = static_cast<std::uint16_t>(bits_of(both.even)[i] >> 16);
    to[2 * i + 1].bits = static_cast<std::uint16_t>(bits_of(both.odd)[i] >> 16);
  }
}

inline void prefetch(const void*) {}
inline void prefetch_stream(const void*) {}

}  // namespace ingot
