// Weights in int8 or int4, as they are packed.
//
// A panel has 32 columns and ceil(K / block) blocks of k. A block holds the 32 float16 scales in
// one line of 64 bytes; then, if it has several groups, their multipliers, or, if it has zeros,
// these; and then its weights. So a thread reads its columns in one sequential stream:
//   zeros         [32 columns] unsigned bytes, zero + 128 in int8 and zero + 8 in int4
//   multipliers   [32 columns], each a word of block / group nibbles in two's complement, the first
//                 group in the lowest
//   int8          [block / 4][32 columns][4 k], value + 128
//   int4          for every 32 k: [4][32 columns][4 k], value + 8; at step j the low nibbles are
//                 k = 4 j .. 4 j + 3 and the high ones k = 16 + 4 j ..
// Columns with a scale of 0 fill up the last panel. The last block ends with its last quads, or in
// int4 with its last 32 k, which zeros fill up.
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
inline constexpr int stored_together = bits == 4 ? 32 : 4;  // k

// `count` k, and those that are stored after them to fill up the last place.
template <int bits>
inline constexpr int stored(int count) {
  return (count + stored_together<bits> - 1) / stored_together<bits> * stored_together<bits>;
}

// One block of one panel, of which there are the first `depth` k. A weight is its integer, times
// the multiplier of its group of k, times the scale of the block. If a group is a whole block,
// there are no multipliers. If `group_` is 0, it is the whole block as well, and a weight is its
// integer less the zero of the block, times the scale.
template <int bits_, int group_, int block, int depth = block>
struct PackedBlock {
  static constexpr int bits = bits_;
  static constexpr bool has_zeros = group_ == 0;
  static constexpr int stored_depth = stored<bits>(depth);
  static constexpr int group = has_zeros ? block : group_;
  static constexpr int groups = block / group;
  static_assert(group == stored<bits>(group) || depth <= group, "see the layout above");
  static_assert(block % group == 0 && depth <= block, "see the layout above");
  static_assert(groups == 1 || (bits == 4 && (groups == 2 || groups == 4)), "see the layout above");
  using Word = std::conditional_t<groups == 4, std::uint16_t, std::uint8_t>;
  static constexpr int word_bytes = groups > 1 || has_zeros ? quantized_columns * sizeof(Word) : 0;
  static constexpr int bytes =
      scale_bytes + word_bytes + quantized_columns * stored_depth * bits / 8;

  const std::uint8_t* data;

  const std::uint8_t* weights() const { return data + scale_bytes + word_bytes; }
  vf scales(int vector) const {
    return load_halves(reinterpret_cast<const std::uint16_t*>(data) + vector * lanes);
  }
  // The multipliers of a vector of columns, in one group.
  vi multipliers(int vector, int index) const {
    const Word* words = reinterpret_cast<const Word*>(data + scale_bytes) + vector * lanes;
    return shift_right(shift_left(load_words(words), 28 - 4 * index), 28);
  }
  // The zeros of a vector of columns, as unsigned as weights are.
  vi zeros(int vector) const { return load_words(data + scale_bytes + vector * lanes); }

  float scale(int column) const {
    float all[lanes];
    store(all, scales(column / lanes));
    return all[column % lanes];
  }
  int multiplier(int column, int index) const {
    if constexpr (groups == 1) return 1;
    Word word;
    std::memcpy(&word, data + scale_bytes + column * sizeof word, sizeof word);
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(word) << (28 - 4 * index)) >> 28;
  }
  int zero(int column) const {
    return has_zeros ? data[scale_bytes + column] : 1 << (bits - 1);
  }
  // A weight's integer, less its zero.
  int value(int column, int k) const {
    const int zero = this->zero(column);
    if constexpr (bits == 8) return weights()[k / 4 * quad_bytes + column * 4 + k % 4] - zero;
    const int step = k / 32 * 4 + k % 16 / 4;
    const int both = weights()[step * quad_bytes + column * 4 + k % 4];
    return (k % 32 < 16 ? both & 15 : both >> 4) - zero;
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
      const int inside = k % block;
      const int index = inside / Panels::Block::group;
      const int whole = from.value(column, inside) * from.multiplier(column, index);
      out[row][k] = static_cast<float>(whole) * from.scale(column);
    }
  }
}

}  // namespace ingot
