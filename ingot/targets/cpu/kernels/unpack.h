// Unpacks int4 to int8 once for many rows, on levels where products in int8 are as fast. A weight
// times its group's multiplier lies in -64 .. 64, and one less its zero in -15 .. 15.
#pragma once

#include "quantized_tile.h"

namespace ingot {

// Unpacks four bytes at a time. With u = value + 8 in each byte, m u + (128 - 8 m) is m value +
// 128; with a zero z as unsigned as u it is u + (128 - z). In one 32-bit integer the products may
// carry into the next byte. The result is right all the same: the bytes of the sum are all in
// range, and the digits of a number are unique.
template <int group, int block, int depth>
inline void unpack(PackedBlock<4, group, block, depth> from, std::uint8_t* to) {
  using Block = PackedBlock<4, group, block, depth>;
  constexpr int half_lines = 4;  // of each of the nibbles, in 32 k
  for (int k = 0; k < depth; k += 2 * half_lines * 4) {
    const std::uint8_t* quads = from.weights() + k / 8 * quad_bytes;
    std::uint8_t* low = to + k / 4 * quad_bytes;
    std::uint8_t* high = low + half_lines * quad_bytes;
    for (int v = 0; v < quantized_vectors; ++v) {
      vi factor = splat_int(1);
      if constexpr (Block::groups > 1) factor = from.multipliers(v, k / Block::group);
      vi zero = multiply(factor, splat_int(8));
      if constexpr (Block::has_zeros) zero = from.zeros(v);
      const vi offset = multiply(add(splat_int(128), multiply(zero, splat_int(-1))),
                                 splat_int(0x01010101));
      for (int line = 0; line < half_lines; ++line) {
        const int at = line * quad_bytes + v * lanes * 4;
        const vi both = load_quads(quads + at);
        store_quads(low + at, add(multiply(low_nibbles(both), factor), offset));
        store_quads(high + at, add(multiply(high_nibbles(both), factor), offset));
      }
    }
  }
}

// Blocks of a panel from `first` on, unpacked.
template <class Stored, int depth>
struct UnpackedBlocks {
  static constexpr int bits = 8, span = stored<4>(depth), spans = 1;
  static constexpr bool multiplied = false, has_zeros = false;

  Stored packed_blocks;
  const std::uint8_t* data;
  int first;

  auto packed(int index) const { return packed_blocks.packed(index); }
  const std::uint8_t* quads(int index) const { return data + offset(index); }
  int offset(int index) const { return (index - first) * span * quantized_columns; }
};

}  // namespace ingot
