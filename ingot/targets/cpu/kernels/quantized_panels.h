// Weights in int8 or int4, as they are packed.
//
// A panel has 32 columns and ceil(K / block) blocks of k. A block holds the 32 float16 scales in
// one line of 64 bytes; then, if it has several groups, their multipliers; then, if it has zeros,
// these; and then its weights. So a thread reads its columns in one sequential stream:
//   multipliers   [32 columns], each a word of block / group nibbles in two's complement, the first
//                 group in the lowest; where there are zeros, less 9
//   zeros         [block / group][32 columns] bytes, to be taken off unsigned weights times their
//                 multipliers: from 0 on, or, beside multipliers, plus 128
//   int8          [block / 4][32 columns][4 k], value + 128
//   int4          for every 32 k: [4][32 columns][4 k], value + 8; at step j the low nibbles are
//                 k = 4 j .. 4 j + 3 and the high ones k = 16 + 4 j ..
//   int5, int6    for every 32 k: the lower 4 bits of value + 16 or + 32 like int4, and then
//                 [1 or 2][32 columns][4 bytes] with the bits above them: byte i has those of
//                 k = i, 4 + i, 8 + i .., the first in the lowest bits
// Columns with a scale of 0 fill up the last panel. The last block ends with its last quads, or in
// fewer than 8 bits with its last 32 k, which zeros fill up.
#pragma once

#include <type_traits>

#include "quads.h"
#include "team.h"

namespace ingot {

inline constexpr int quantized_columns = 32;
inline constexpr int line_bytes = 64;
inline constexpr int scale_bytes = quantized_columns * 2;
inline constexpr int quad_bytes = quantized_columns * 4;  // a quad of every column
inline constexpr int quantized_vectors = quantized_columns / lanes;

template <int bits>
inline constexpr int stored_together = bits < 8 ? 32 : 4;  // k

// `count` k, and those that are stored after them to fill up the last place.
template <int bits>
inline constexpr int stored(int count) {
  return (count + stored_together<bits> - 1) / stored_together<bits> * stored_together<bits>;
}

// Of 5 or 6 bits: the line that has the bits above the lower 4 of a quad, of the 8 of 32 k, and
// these bits in their place.
template <int bits>
inline constexpr int quads_of_line = 8 / (bits - 4);
template <int bits>
inline constexpr int above_line(int quad) {
  return quad / quads_of_line<bits>;
}
template <int bits>
[[gnu::always_inline]] inline vi bits_above(vi line, int quad) {
  const int from = quad % quads_of_line<bits> * (bits - 4);
  const vi placed = from < 4 ? shift_left(line, 4 - from) : shift_right(line, from - 4);
  return kept_bits(placed, ((1 << (bits - 4)) - 1) << 4);
}

// One block of one panel, of which there are the first `depth` k. A weight is its integer, times
// the multiplier of its group of k, times the scale of the block. If a group is a whole block,
// there are no multipliers. If `group_` is below 0, groups of -group_ k have zeros, which are taken
// off before the scale is applied.
template <int bits_, int group_, int block, int depth = block>
struct PackedBlock {
  static constexpr int bits = bits_;
  static constexpr bool has_zeros = group_ < 0;
  static constexpr int stored_depth = stored<bits>(depth);
  static constexpr int group = has_zeros ? -group_ : group_;
  static constexpr int groups = block / group;
  static_assert(group == stored<bits>(group) || depth <= group, "see the layout above");
  static_assert(block % group == 0 && depth <= block, "see the layout above");
  static_assert(groups == 1 || (bits < 8 && (groups == 2 || groups == 4)), "see the layout above");
  using Word = std::conditional_t<groups == 4, std::uint16_t, std::uint8_t>;
  static constexpr bool multiplied = groups > 1;
  static constexpr int zeros_at = scale_bytes + (multiplied ? quantized_columns * sizeof(Word) : 0);
  static constexpr int weights_at = zeros_at + (has_zeros ? quantized_columns * groups : 0);
  static constexpr int bytes = weights_at + quantized_columns * stored_depth * bits / 8;
  static constexpr int zero_offset = multiplied ? 128 : 0;  // in stored zeros
  static constexpr int multiplier_offset = 9;               // left out of stored ones beside zeros

  const std::uint8_t* data;

  const std::uint8_t* weights() const { return data + weights_at; }
  vf scales(int vector) const {
    return load_halves(reinterpret_cast<const std::uint16_t*>(data) + vector * lanes);
  }
  // The multipliers of a vector of columns, in one group.
  vi multipliers(int vector, int index) const {
    const Word* words = reinterpret_cast<const Word*>(data + scale_bytes) + vector * lanes;
    const vi stored = shift_right(shift_left(load_words(words), 28 - 4 * index), 28);
    return has_zeros ? add(stored, splat_int(multiplier_offset)) : stored;
  }
  // What is taken off unsigned weights times their multipliers, of a vector of columns.
  vi zeros(int vector, int index) const {
    const vi stored = stored_zeros(vector, index);
    return multiplied ? add(stored, splat_int(-zero_offset)) : stored;
  }
  vi stored_zeros(int vector, int index) const {
    return load_words(data + zeros_at + index * quantized_columns + vector * lanes);
  }

  float scale(int column) const {
    float all[lanes];
    store(all, scales(column / lanes));
    return all[column % lanes];
  }
  int multiplier(int column, int index) const {
    if constexpr (groups == 1) return 1;
    Word word;
    std::memcpy(&word, data + scale_bytes + column * sizeof word, sizeof word);
    const std::uint32_t highest = static_cast<std::uint32_t>(word) << (28 - 4 * index);
    return (static_cast<std::int32_t>(highest) >> 28) + (has_zeros ? multiplier_offset : 0);
  }
  int zero(int column, int index) const {
    if constexpr (has_zeros)
      return data[zeros_at + index * quantized_columns + column] - zero_offset;
    return multiplier(column, index) * (1 << (bits - 1));
  }
  // A weight's integer, times its multiplier, less its zero.
  int value(int column, int k) const {
    const int index = k / group;
    return stored_value(column, k) * multiplier(column, index) - zero(column, index);
  }

 private:
  int stored_value(int column, int k) const {
    if constexpr (bits == 8) return weights()[k / 4 * quad_bytes + column * 4 + k % 4];
    const std::uint8_t* from = weights() + k / 32 * bits * quad_bytes + column * 4 + k % 4;
    const int both = from[k % 16 / 4 * quad_bytes], lower = k % 32 < 16 ? both & 15 : both >> 4;
    if constexpr (bits > 4) {
      const int quad = k % 32 / 4, first = quad % quads_of_line<bits> * (bits - 4);
      const int above = from[(4 + above_line<bits>(quad)) * quad_bytes] >> first;
      return lower | (above & ((1 << (bits - 4)) - 1)) << 4;
    }
    return lower;
  }
};

// The blocks of rows of `Inputs` k: `whole` of them and, if k are left, one of `last`.
template <int bits, int block, int Inputs>
struct BlocksOfRow {
  static constexpr int whole = block == stored<bits>(block) ? Inputs / block : 0;
  static constexpr int left = Inputs - whole * block;
  static constexpr bool any_left = left > 0;
  static constexpr int last = any_left ? left : block, count = whole + any_left;
};

// A whole weight matrix.
template <int bits, int group, int block, int Inputs, int Outputs>
struct QuantizedPanels {
  using Block = PackedBlock<bits, group, block>;
  using In = BlocksOfRow<bits, block, Inputs>;
  using Last = PackedBlock<bits, group, block, In::last>;
  static constexpr int count = (Outputs + quantized_columns - 1) / quantized_columns;
  static constexpr std::ptrdiff_t whole_bytes =
      static_cast<std::ptrdiff_t>(In::whole) * Block::bytes;
  static constexpr std::ptrdiff_t panel_bytes = whole_bytes + (In::any_left ? Last::bytes : 0);

  const std::uint8_t* data;

  const std::uint8_t* panel(int index) const { return data + index * panel_bytes; }
};

// out[n] = the dequantized column tokens[n]
template <int bits, int group, int block, int Columns, int Vocabulary>
void quantized_embedding(Slice slice, const int* tokens, const std::uint8_t* weight,
                         Rows<float> out) {
  using Panels = QuantizedPanels<bits, group, block, Columns, Vocabulary>;
  const Panels panels{weight};
  for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
    const std::uint8_t* panel = panels.panel(tokens[row] / quantized_columns);
    const int column = tokens[row] % quantized_columns;
    for (int k = 0; k < Columns; ++k) {
      const typename Panels::Block from{panel + k / block * Panels::Block::bytes};
      out[row][k] = static_cast<float>(from.value(column, k % block)) * from.scale(column);
    }
  }
}

}  // namespace ingot
