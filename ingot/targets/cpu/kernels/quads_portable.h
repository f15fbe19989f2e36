// Any little-endian machine. See quads.h for the contract.
#pragma once

#include <cstring>

#include "simd_portable.h"

namespace ingot {

inline vi load_quads(const std::uint8_t* from) {
  vi v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline void store_quads(std::uint8_t* to, vi v) { std::memcpy(to, &v, sizeof v); }
inline vi splat_int(int x) { return vi{x, x, x, x}; }
inline vi splat_quad(const std::int8_t* from) {
  std::int32_t quad;
  std::memcpy(&quad, from, sizeof quad);
  return splat_int(quad);
}
inline vf to_float(vi v) { return __builtin_convertvector(v, vf); }

// These wrap around, like the vector instructions of the other levels.
using vu = std::uint32_t __attribute__((vector_size(sizeof(vi))));
inline vu bits_of(vi v) { return reinterpret_cast<vu>(v); }
inline vi add(vi a, vi b) { return reinterpret_cast<vi>(bits_of(a) + bits_of(b)); }
inline vi multiply(vi a, vi b) { return reinterpret_cast<vi>(bits_of(a) * bits_of(b)); }
inline vi shift_left(vi v, int bits) { return reinterpret_cast<vi>(bits_of(v) << bits); }
inline vi shift_right(vi v, int bits) { return v >> bits; }

using vw = std::uint16_t __attribute__((vector_size(sizeof(vi))));
inline vi add_in_words(vi a, vi b) {
  return reinterpret_cast<vi>(reinterpret_cast<vw>(a) + reinterpret_cast<vw>(b));
}
inline vi multiply_in_words(vi a, vi b) {
  return reinterpret_cast<vi>(reinterpret_cast<vw>(a) * reinterpret_cast<vw>(b));
}
inline vi add_products(vi acc, vi a, vi b) {
  const auto lower = [](vi v) { return shift_right(shift_left(v, 16), 16); };
  return acc + lower(a) * lower(b) + (a >> 16) * (b >> 16);
}
inline vi both_words(vi v) { return add(shift_left(v, 16), v & 0xffff); }

template <class T>
inline vi load_words(const T* from) {
  return vi{from[0], from[1], from[2], from[3]};
}

inline vi low_nibbles(vi v) { return v & 0x0f0f0f0f; }
inline vi high_nibbles(vi v) { return low_nibbles(v >> 4); }
inline vi kept_bits(vi v, int mask) { return v & mask * 0x01010101; }
inline vi either(vi a, vi b) { return a | b; }
inline vi masked(vi v, int mask) { return v & mask; }
inline vi look_up(const std::uint8_t (&table)[16], vi v) {
  std::uint8_t bytes[sizeof v];
  std::memcpy(bytes, &v, sizeof v);
  for (std::uint8_t& byte : bytes) byte = table[byte];
  return load_quads(bytes);
}
inline vi less_128(vi v) { return reinterpret_cast<vi>(bits_of(v) ^ 0x80808080u); }

// Exponents of float16 are 112 below those of float32. The product is exact, even for subnormals.
// The largest exponent says that a value is infinite or NaN, and so does that of float32.
inline vf load_halves(const std::uint16_t* from) {
  vi bits;
  for (int i = 0; i < lanes; ++i)
    bits[i] = (from[i] & 0x8000) << 16 | (from[i] & 0x7fff) << 13;
  const vi special = (bits & 0x0f800000) == 0x0f800000;
  return float_of(bits_of(float_of(bits) * splat(0x1p112f)) | (special & 0x7f800000));
}

inline void store_int8(std::int8_t* to, vf v, int n) {
  for (int i = 0; i < lanes && i < n; ++i) to[i] = static_cast<std::int8_t>(v[i]);
}

template <int n>
inline int sum_values(const std::int8_t* from) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += from[i];
  return sum;
}

// Products of bytes fit into 16 bits, and machines multiply more of these at once than of 32 bits.
using vs = std::int16_t __attribute__((vector_size(sizeof(vi))));
inline vs words_of(vi v) { return reinterpret_cast<vs>(v); }

// The first and the third byte of every quad, and the second and the fourth.
struct ByteWords {
  vs even, odd;
};
inline ByteWords unsigned_bytes(vi quads) {
  return {words_of(quads & 0x00ff00ff), words_of((quads >> 8) & 0x00ff00ff)};
}
inline ByteWords signed_bytes(vi quads) {
  return {words_of(shift_left(quads, 8)) >> 8, words_of(quads) >> 8};
}

// sums + both words of every lane.
inline vi add_words(vi sums, vs words) {
  const vi both = reinterpret_cast<vi>(words);
  return sums + (shift_left(both, 16) >> 16) + (both >> 16);
}

inline constexpr bool fast_bytes = false, unpacking_pays = false;

// Weights of fewer than 8 bits: one step reaches 4 * 63 * 127 at most.
template <int bits>
struct QuadDot {
  using Weights = ByteWords;
  using Sums = vi;
  static constexpr int zero_point = 1 << (bits - 1);
  static constexpr int most_steps = 8;

  static Weights weights(vi quads) { return unsigned_bytes(quads); }
  static Sums open(vi acc) { return acc; }
  static vi close(vi, Sums sums) { return sums; }
  static Sums step(Sums sums, Weights w, vi quad) {
    const ByteWords x = signed_bytes(quad);
    return add_words(sums, w.even * x.even + w.odd * x.odd);
  }
};

template <>
struct QuadDot<8> {
  using Weights = ByteWords;
  using Sums = vi;
  static constexpr int zero_point = 128;
  static constexpr int most_steps = 8;

  static Weights weights(vi quads) { return unsigned_bytes(quads); }
  static Sums open(vi acc) { return acc; }
  static vi close(vi, Sums sums) { return sums; }
  static Sums step(Sums sums, Weights w, vi quad) {
    const ByteWords x = signed_bytes(quad);
    return add_words(add_words(sums, w.even * x.even), w.odd * x.odd);
  }
};

// Sums of 16 bits: eight steps reach 8 * 2 * 15 * 127 = 30,480 at most.
template <>
struct QuadDot<4> {
  using Weights = ByteWords;
  using Sums = vs;
  static constexpr int zero_point = 8;
  static constexpr int most_steps = 8;

  static Weights weights(vi quads) { return unsigned_bytes(quads); }
  static Sums open(vi) { return vs{}; }
  static vi close(vi acc, Sums sums) { return add_words(acc, sums); }
  static Sums step(Sums sums, Weights w, vi quad) {
    const ByteWords x = signed_bytes(quad);
    return sums + w.even * x.even + w.odd * x.odd;
  }
};

}  // namespace ingot
