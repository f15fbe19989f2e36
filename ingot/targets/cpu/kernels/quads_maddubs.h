// Products of quads by an instruction that adds two products of bytes in 16 bits. The level gives
//
//   SignedBytes, signed_bytes(quads)   stored weights as magnitudes and signs
//   turned(x, w)                       x, with the signs of w
//   multiply_bytes(u, x)               sums of two neighbouring products, in words
//   add_in_words(a, b)                 a + b in 16 bits
//   add_words(acc, words)              acc + both words of every lane
//
// See quads.h for the contract.
#pragma once

#include "x86.h"

namespace ingot {

inline constexpr bool fast_bytes = false, unpacking_pays = true;

// Weights of fewer than 8 bits. Words hold so many steps of the largest products.
template <int bits>
struct QuadDot {
  using Weights = vi;
  using Sums = vi;
  static constexpr int zero_point = 1 << (bits - 1);
  static constexpr int most_steps = 0x7fff / (2 * ((1 << bits) - 1) * 127);

  static Weights weights(vi quads) { return quads; }
  static Sums open(vi) { return splat_int(0); }
  static vi close(vi acc, Sums sums) { return add_words(acc, sums); }
  static Sums step(Sums sums, Weights w, vi x) {
    return added_up(add_in_words(sums, multiply_bytes(w, x)));
  }
};

// Magnitudes times signed x: 2 * 127 * 127 fits into 16 bits, 2 * 255 * 127 would not.
template <>
struct QuadDot<8> {
  using Weights = SignedBytes;
  using Sums = vi;
  static constexpr int zero_point = 0;
  static constexpr int most_steps = 8;

  static Weights weights(vi quads) { return signed_bytes(quads); }
  static Sums open(vi acc) { return acc; }
  static vi close(vi, Sums sums) { return sums; }
  static Sums step(Sums sums, Weights w, vi x) {
    return added_up(add_words(sums, multiply_bytes(w.magnitude, turned(x, w))));
  }
};

template <int n>
inline int sum_values(const std::int8_t* from) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += from[i];
  return sum;
}

}  // namespace ingot
