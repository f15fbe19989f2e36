// Unpacks int4, int5 and int6 to bytes once for many rows. Where products in int8 are as fast, these
// are int8: a weight times its group's multiplier lies in -64 .. 64, one less its zero in -15 .. 15,
// and one with both in -127 .. 127. Where they are not, or there are two levels, which do not fit,
// bytes are the stored integers, and what codes stand for. Those and groups with scales of their own
// keep their spans.
#pragma once

#include "quantized_tile.h"

namespace ingot {

template <class Block>
inline constexpr bool keeps_integers = Block::two_level || !fast_bytes;
template <class Block>
inline constexpr bool keeps_spans = keeps_integers<Block> || Block::scales_apart;

// The parts of a block that are unpacked one after the other: 32 k of one vector of columns each.
template <class Block>
inline constexpr int unpacked_parts = stored<4>(Block::stored_depth) / 32 * quantized_vectors;
inline constexpr int unpacked_half = 4;  // lines of half a part

// What unpacked nibbles of each group and vector are multiplied with.
template <class Block>
class UnpackFactors {
 public:
  explicit UnpackFactors(Block from) : from_(from) {
    if constexpr (Block::multiplied && !keeps_integers<Block>)
#pragma GCC unroll 4
      for (int group = 0; group < Block::groups; ++group)
#pragma GCC unroll 4
        for (int v = 0; v < quantized_vectors; ++v)
          factors_[group][v] = both_words(from.multipliers(v, group));
  }

  // For several groups; that of a single one would be 1.
  vi factor(int vector, int k) const { return factors_[k / Block::group][vector]; }
  // 128 less the zero in each byte.
  vi offset(int vector, int k) const {
    const vi middle = splat_int(-0x7f7f7f80);
    if constexpr (keeps_integers<Block>) return splat_int(0);
    if constexpr (Block::has_zeros)
      return add(middle, multiply(from_.zeros(vector, k / Block::group), splat_int(-0x01010101)));
    else if constexpr (Block::multiplied)
      return add_in_words(middle, multiply_in_words(factor(vector, k), splat_int(-0x08070808)));
    else
      return splat_int(0x01010101 * (128 - (1 << (Block::bits - 1))));
  }

 private:
  Block from_;
  vi factors_[Block::groups][quantized_vectors];
};

// Weights of a part as bytes: unsigned, plus 128, or signed. Unpacks two bytes at a time: with
// u = value + 8 in each byte, m u + (128 - 8 m) is m value + 128; with a zero z as unsigned as u it
// is u + (128 - z). In one 16-bit integer the products may carry into the next byte. The result is
// right all the same: both bytes of the sum are in range, and the digits of a number are unique.
template <bool is_signed, class Block>
[[gnu::always_inline]] inline void unpack_part(Block from, const UnpackFactors<Block>& factors,
                                               int part, std::uint8_t* to) {
  const int k = part / quantized_vectors * 32, vector = part % quantized_vectors;
  constexpr int bits = Block::bits;
  const std::uint8_t* quads = from.weights() + k / 32 * bits * quad_bytes + vector * lanes * 4;
  std::uint8_t* low = to + k / 4 * quad_bytes + vector * lanes * 4;
  std::uint8_t* high = low + unpacked_half * quad_bytes;
  const vi offsets[2] = {factors.offset(vector, k), factors.offset(vector, k + 16)};
  const auto bytes = [&](vi nibbles, int half) {
    if constexpr (Block::has_codes) return look_up(coded, nibbles);
    if constexpr (keeps_integers<Block>) return nibbles;
    if constexpr (Block::multiplied)
      nibbles = multiply_in_words(nibbles, factors.factor(vector, k));
    const vi sum = add_in_words(nibbles, offsets[half]);
    return is_signed ? less_128(sum) : sum;
  };
  vi above[bits - 4 + 1];  // one more, as no array is empty
#pragma GCC unroll 2
  for (int i = 4; i < bits; ++i) above[i - 4] = load_quads(quads + i * quad_bytes);
#pragma GCC unroll 4
  for (int i = 0; i < unpacked_half; ++i) {
    const int at = i * quad_bytes;
    const vi both = load_quads(quads + at);
    vi first = low_nibbles(both), second = high_nibbles(both);
    if constexpr (bits > 4) {
      first = either(first, bits_above<bits>(above[above_line<bits>(i)], i));
      second = either(second, bits_above<bits>(above[above_line<bits>(i + 4)], i + 4));
    }
    store_quads(low + at, bytes(first, 0));
    store_quads(high + at, bytes(second, 1));
  }
}

template <class Block>
inline void unpack(Block from, std::uint8_t* to) {
  const UnpackFactors<Block> factors(from);
  for (int part = 0; part < unpacked_parts<Block>; ++part)
    unpack_part<false>(from, factors, part, to);
}

// A block whose multipliers, and pairs of zeros, were spelled out in integers of 32 bits.
template <class Block>
struct SpelledBlock : Block {
  static constexpr int pairs = Block::six_bits ? Block::groups / 2 : 0;
  static constexpr int bytes = (Block::groups + pairs) * quad_bytes;

  const std::uint8_t* spelled;

  vi multipliers(int vector, int index, int next = 0) const {
    return load_quads(spelled + (index + next) * quad_bytes + vector * lanes * 4);
  }
  vi zero_pairs(int vector, int pair) const {
    return load_quads(spelled + (Block::groups + pair) * quad_bytes + vector * lanes * 4);
  }
};

template <class Block>
inline void spell_out(Block from, std::uint8_t* to) {
  for (int vector = 0; vector < quantized_vectors; ++vector, to += lanes * 4) {
    for (int group = 0; group < Block::groups; ++group)
      store_quads(to + group * quad_bytes, from.multipliers(vector, group));
    for (int pair = 0; pair < SpelledBlock<Block>::pairs; ++pair)
      store_quads(to + (Block::groups + pair) * quad_bytes, from.zero_pairs(vector, pair));
  }
}

// Blocks of a panel from `first` on, unpacked. Multipliers that tiles need are spelled out behind
// each.
template <class Stored, int depth>
struct UnpackedBlocks {
  using Block = typename Stored::Block;
  static constexpr int bits = 8, dot_bits = fast_bytes ? 8 : Stored::dot_bits;
  static constexpr int packed_bits = Stored::bits;
  static constexpr int size = stored<4>(depth), span = keeps_spans<Block> ? Stored::span : size;
  static constexpr int spans = size / span, together = 1, group = span;
  static constexpr bool multiplied = keeps_integers<Block> && Stored::multiplied;
  static constexpr bool has_zeros = keeps_integers<Block> && Stored::has_zeros;
  static constexpr bool has_minimums = Block::has_minimums, has_codes = false;
  static constexpr bool paired = Stored::paired;
  static constexpr int starts = Stored::starts, scales = Stored::scales;

  static constexpr int weight_bytes = size * quantized_columns;
  static constexpr int bytes = weight_bytes + (multiplied ? SpelledBlock<Block>::bytes : 0);

  Stored packed_blocks;
  const std::uint8_t* data;
  int first;

  auto packed(int index) const {
    const Block block = packed_blocks.packed(index);
    if constexpr (multiplied)
      return SpelledBlock<Block>{block, quads(index) + weight_bytes};
    else
      return block;
  }
  const std::uint8_t* quads(int index) const { return data + offset(index); }
  int offset(int index) const { return (index - first) * bytes; }
};

// Unpacks block `index` of those into their memory.
template <class Stored, int depth>
inline void unpack(const UnpackedBlocks<Stored, depth>& blocks, int index, std::uint8_t* memory) {
  using Blocks = UnpackedBlocks<Stored, depth>;
  const auto from = blocks.packed_blocks.packed(index);
  std::uint8_t* to = memory + blocks.offset(index);
  unpack(from, to);
  if constexpr (Blocks::multiplied) spell_out(from, to + Blocks::weight_bytes);
}

}  // namespace ingot
