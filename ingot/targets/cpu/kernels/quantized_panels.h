// Weights in 4 to 8 bits, as they are packed.
//
// A panel has 32 columns and ceil(K / block) blocks of k. A block holds the 32 float16 scales in
// one line of 64 bytes, or such a line for each group if these have scales of their own; then, if it
// has minimums, these in another; then, if its groups share the scale, their multipliers; then, if
// it has zeros, these; and then its weights. So a thread reads its columns in one sequential stream:
//   multipliers
//     of 4 bits   [32 columns], each a word of block / group nibbles in two's complement, the first
//                 group in the lowest; where there are zeros, less 9
//     of 6 bits   with the zeros z, for every 4 groups [32 columns] words of 32 bits and then of 16.
//                 From the lowest on, these have the lower 4 bits, and the 2 above, of z of groups 0
//                 and 2, m of 0 and 2, z of 1 and 3, m of 1 and 3
//     of 8 bits   [block / group][32 columns] bytes, each plus 128
//   zeros         [block / group][32 columns] bytes, to be taken off unsigned weights times their
//                 multipliers: from 0 on, or, beside multipliers, plus 128
//   int8          [block / 4][32 columns][4 k], value + 128; beside minimums, values of any bits are
//                 unsigned as they are
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

// What a block has besides scales, as flags of the number that says the k of a group.
inline constexpr int with_zeros = 1 << 24, with_minimums = 1 << 25, with_codes = 1 << 26,
                     with_bytes = 1 << 27,  // multipliers of 8 bits
                     with_scales = 1 << 28;  // of every group, in place of multipliers

// The integers that codes stand for, plus 128.
alignas(16) inline constexpr std::uint8_t coded[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                       129, 141, 153, 166, 181, 197, 217, 241};

// One block of one panel, of which there are the first `depth` k. A weight is its integer, times
// the multiplier of its group of k, less its zero, times the scale of the block. If a group is a
// whole block, or has a scale of its own, there are no multipliers. With minimums, a zero is taken off times the minimum of
// the block, and not times its scale; where there are none, it is 1.
template <int bits_, int grouping, int block, int depth = block>
struct PackedBlock {
  static constexpr int six_bits_bytes = 6;  // of the multipliers and zeros of four groups
  static constexpr int bits = bits_;
  static constexpr bool has_minimums = grouping & with_minimums, has_codes = grouping & with_codes;
  static constexpr bool has_zeros = (grouping & with_zeros) && !has_minimums;
  static constexpr int stored_depth = stored<bits>(depth);
  static constexpr int group = grouping % with_zeros;
  static constexpr int groups = block / group;
  static constexpr bool scales_apart = grouping & with_scales;
  static constexpr bool multiplied = groups > 1 && !scales_apart;
  static constexpr int scaled = scales_apart ? group : block;  // k that share a scale
  static constexpr bool six_bits = multiplied && has_minimums, in_bytes = grouping & with_bytes;
  // Whether there is what kernels for int8 do not know: a weight of this is no byte times a scale.
  static constexpr bool two_level = has_minimums || has_codes || in_bytes;
  static_assert(group == stored<bits>(group) || depth <= group || two_level || group == 16,
                "see the layout above");
  static_assert(block % group == 0 && depth <= block, "see the layout above");
  static_assert(groups == 1 || (bits < 8 && (groups == 2 || groups == 4 || two_level)),
                "see the layout above");
  static_assert(!scales_apart || !two_level, "see the layout above");
  using Word = std::conditional_t<groups == 4, std::uint16_t, std::uint8_t>;
  static constexpr int multipliers_at = scale_bytes * (block / scaled + has_minimums);
  static constexpr int zeros_at =
      multipliers_at + quantized_columns * (six_bits     ? groups / 4 * six_bits_bytes
                                            : in_bytes   ? groups
                                            : multiplied ? static_cast<int>(sizeof(Word))
                                                         : 0);
  static constexpr int weights_at = zeros_at + (has_zeros ? quantized_columns * groups : 0);
  static constexpr int bytes = weights_at + quantized_columns * stored_depth * bits / 8;
  static constexpr int zero_offset = multiplied ? 128 : 0;  // in stored zeros
  static constexpr int multiplier_offset = 9;               // left out of stored ones beside zeros

  const std::uint8_t* data;

  const std::uint8_t* weights() const { return data + weights_at; }
  vf scales(int vector, int index = 0) const { return halves(index * scale_bytes, vector); }
  vf minimums(int vector) const { return halves(scale_bytes, vector); }
  // The multipliers of a vector of columns, in group index + next. Two with the same index, which is
  // even then, share their work.
  vi multipliers(int vector, int index, int next = 0) const {
    if constexpr (six_bits) {
      const vi both = six_bits_of(vector, index / 4, 2 + index % 4 / 2);
      return (index + next) % 2 == 0 ? masked(both, 0xffff) : shift_right(both, 16);
    }
    index += next;
    if constexpr (in_bytes) {
      const std::uint8_t* from = data + multipliers_at + index * quantized_columns;
      return add(load_words(from + vector * lanes), splat_int(-128));
    } else {
      const Word* words = reinterpret_cast<const Word*>(data + multipliers_at) + vector * lanes;
      const vi stored = shift_right(shift_left(load_words(words), 28 - 4 * index), 28);
      return has_zeros ? add(stored, splat_int(multiplier_offset)) : stored;
    }
  }
  // The zeros of groups 2 * pair and 2 * pair + 1 that minimums are for, in the halves of integers.
  vi zero_pairs(int vector, int pair) const { return six_bits_of(vector, pair / 2, pair % 2); }
  // What is taken off unsigned weights times their multipliers, of a vector of columns.
  vi zeros(int vector, int index) const {
    const vi stored = stored_zeros(vector, index);
    return multiplied ? add(stored, splat_int(-zero_offset)) : stored;
  }
  vi stored_zeros(int vector, int index) const {
    return load_words(data + zeros_at + index * quantized_columns + vector * lanes);
  }

  float scale(int column, int k) const {
    return lane(scales(column / lanes, k / scaled), column);
  }
  int multiplier(int column, int index) const {
    if constexpr (!multiplied) return 1;
    if constexpr (two_level) return lane(multipliers(column / lanes, index), column);
    Word word;
    std::memcpy(&word, data + multipliers_at + column * sizeof word, sizeof word);
    const std::uint32_t highest = static_cast<std::uint32_t>(word) << (28 - 4 * index);
    return (static_cast<std::int32_t>(highest) >> 28) + (has_zeros ? multiplier_offset : 0);
  }
  int zero(int column, int index) const {
    if constexpr (has_zeros)
      return data[zeros_at + index * quantized_columns + column] - zero_offset;
    return multiplier(column, index) * (1 << (bits - 1));
  }
  // Writes the first `count` weights of a column. Products are exact: float32 has the digits of a
  // scale, a multiplier and an integer.
  void numbers(int column, int count, float* out) const {
    for (int begin = 0; begin < count; begin += group) {
      const int end = begin + group < count ? begin + group : count;
      group_numbers(column, begin, end, out);
    }
  }

 private:
  void group_numbers(int column, int begin, int end, float* out) const {
    const int index = begin / group, times = multiplier(column, index);
    const float unit = scale(column, begin);
    if constexpr (has_zeros) {
      const int off = zero(column, index);
      for (int k = begin; k < end; ++k)
        out[k] = static_cast<float>(stored_value(column, k) * times - off) * unit;
      return;
    }
    constexpr int offset = has_minimums ? 0 : has_codes ? 128 : 1 << (bits - 1);
    const float step = static_cast<float>(times) * unit;
    for (int k = begin; k < end; ++k) {
      const int stored = stored_value(column, k);
      out[k] = step * static_cast<float>((has_codes ? coded[stored] : stored) - offset);
    }
    if constexpr (has_minimums) {
      const float least = static_cast<float>(minimum_zero(column, index)) *
                          lane(minimums(column / lanes), column);
      for (int k = begin; k < end; ++k) out[k] -= least;
    }
  }
  vf halves(int at, int vector) const {
    return load_halves(reinterpret_cast<const std::uint16_t*>(data + at) + vector * lanes);
  }
  // Of four groups: zeros of two, zeros of the other two, and the multipliers of these and those.
  vi six_bits_of(int vector, int four, int which) const {
    const std::uint8_t* from = data + multipliers_at + four * six_bits_bytes * quantized_columns;
    const auto* upper = reinterpret_cast<const std::uint16_t*>(from + 4 * quantized_columns);
    const vi lower = load_quads(from + vector * lanes * 4);
    const vi words = load_words(upper + vector * lanes);
    const vi above = shift_right(shift_left(either(words, shift_left(words, 8)), 4), 2 * which);
    return either(masked(shift_right(lower, 4 * which), 0x000f000f), masked(above, 0x00300030));
  }
  int minimum_zero(int column, int index) const {
    if constexpr (!six_bits) return 1;
    const int both = lane(zero_pairs(column / lanes, index / 2), column);
    return index % 2 == 0 ? both & 0xffff : both >> 16;
  }
  template <class Number, class Vector>
  static Number lane_of(Vector v, int column) {
    Number all[lanes];
    std::memcpy(all, &v, sizeof all);
    return all[column % lanes];
  }
  static float lane(vf v, int column) { return lane_of<float>(v, column); }
  static int lane(vi v, int column) { return lane_of<int>(v, column); }
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
    for (int k = 0; k < Columns; k += block) {
      const typename Panels::Block from{panel + k / block * Panels::Block::bytes};
      from.numbers(column, k + block < Columns ? block : Columns - k, out[row] + k);
    }
  }
}

}  // namespace ingot
