// Tiles of out = x W^T in integers: some rows of x times one panel of W, over a range of blocks.
//
// For each block, in ascending order: sum += float(d) * (scale of x * scale of w). Here d, the sum
// of multiplier * (x . w) - zero * (sum of x) over the block's groups, is an exact integer. Groups
// with scales of their own each have such a sum, one after the other, and x has scales for them. With
// minimums it has no zeros, and sum += float(m) * (scale of x * minimum of w) follows, where m is
// the sum of -zero * (sum of x). So levels are free in how they compute d and m, and the one float32
// of an element fixes the bits.
//
// Where x is in int16, a row of it is two of int8: the high bytes and the low ones. A tile multiplies
// both with the same weights, and float(d) is fma(float(high d), 255, float(low d)); so is float(m).
#pragma once

#include "next_attention.h"
#include "quantize.h"
#include "quantized_panels.h"
#include "tile.h"

namespace ingot {

inline constexpr int quad_tile_vectors = 2;

// Rows of x, each of so many planes of bytes, and the start of every column's sums over a span of k:
// -zero_point * (sum of x), or -(sum of x) where columns have zeros of their own or minimums. From
// one plane to the next are so many values and starts, and from one row to the next so many scales:
// fixed addresses save the tiles a sixth of their instructions. Weights may have more k than x: of
// these x has `Depth`, or all if that is 0.
template <int Planes, int Values, int Scales, int Starts, int Depth = 0>
struct QuantizedRows {
  static constexpr int planes = Planes, stride = Values;
  const std::int8_t* values;
  const float* scales;
  const int* starts;

  vi quad(int plane, int k) const {
    const std::int8_t* from = values + plane * Values + k;
    if (Depth == 0 || k + 4 <= Depth) return splat_quad(from);
    std::int8_t quad[4] = {};
    for (int i = 0; k + i < Depth; ++i) quad[i] = from[i];
    return splat_quad(quad);
  }
  float scale(int row, int index) const { return scales[row * Scales + index]; }
  int start(int plane, int index) const { return starts[plane * Starts + index]; }

  QuantizedRows from(int row) const {
    return {values + row * Planes * Values, scales + row * Scales, starts + row * Planes * Starts};
  }
};

// Lines of quads that a tile takes before it does anything else: 8 quads of every column.
template <int bits>
inline constexpr int lines_at_once = bits;

// Lines of quads for which a tile fetches one of the next attention.
inline constexpr int lines_for_attention = 4;

// How far ahead a tile fetches at least if it reads memory itself.
template <int bits>
inline constexpr int quads_ahead = bits < 8 ? tuned::int4_ahead : tuned::int8_ahead;

// A tile calls head(place, bytes) for what precedes the quads of a block, quads(i) for each line of
// quads of all columns, and vector(place) for each vector in it. What lies ahead is whole blocks, so
// that of a panel nothing is left out.
struct FetchStream {
  std::ptrdiff_t ahead;

  void head(const std::uint8_t* place, int bytes) const {
    for (int at = 0; at < bytes; at += line_bytes) prefetch_stream(place + at + ahead);
  }
  void vector(const std::uint8_t* place) const { prefetch_stream(place + ahead); }
  void quads(int) const {}
};

// Several tiles share a block, and each fetches its part of the next block, so that memory works
// all the time and not only during the first tile. Fetches are spread evenly, as several in a row
// hold up the loads: that cost products of 16 rows 6 to 16 %. Where tiles are many, they fetch a
// line several times in a row, which costs less than a branch. In between they fetch for the next
// attention.
template <int every>  // so many lines of quads
struct FetchShared {
  const std::uint8_t* next;
  std::uint32_t pace;  // lines to fetch at a step, at most one, in units of 2^-16
  Lines later;
  std::uint32_t at = 0;

  void head(const std::uint8_t*, int) { step(); }
  void vector(const std::uint8_t*) const {}
  void quads(int i) {
    if (i % every == 0) step();
    if (i % lines_for_attention == lines_for_attention / 2) prefetch(later.take());
  }

 private:
  void step() {
    prefetch(next + (at >> 16) * line_bytes);
    at += pace;
  }
};

// Loads line i of quads of Width vectors, and fetches line `turn` of those ahead. Bits above the
// others are loaded first and lie behind them; fetched out of order, weights come from memory at
// two thirds of the speed.
template <int Width, class Fetch>
[[gnu::always_inline]] inline void load_line(const std::uint8_t* quads, int i, int turn,
                                             Fetch& fetch, vi (&line)[Width]) {
  fetch.quads(i);
  for (int v = 0; v < Width; ++v) {
    const int vector = v * lanes * 4;
    fetch.vector(quads + turn * quad_bytes + vector);
    line[v] = load_quads(quads + i * quad_bytes + vector);
  }
}

template <int which>
using Half = std::integral_constant<int, which>;

// Calls step(quads of Width vectors, k, half) for `Lines` lines of a group from `first` on. Lines of
// fewer than 8 bits are those of whole 32 k, and the half says which 16 of them; codes become bytes.
template <class Blocks, int Width, int Lines, class Fetch, class Step>
[[gnu::always_inline]] inline void for_quads(const std::uint8_t* quads, int first,
                                             Fetch& fetch, Step step) {
  constexpr int bits = Blocks::bits;
  quads += first * quad_bytes;
  if constexpr (bits == 8) {
#pragma GCC unroll 8
    for (int i = 0; i < Lines; ++i) {
      vi line[Width];
      load_line(quads, i, i, fetch, line);
      step(line, (first + i) * 4, Half<0>());
    }
  } else {
    static_assert(Lines == bits, "see the layout");
    vi above[bits - 4 + 1][Width];  // one more, as no array is empty
#pragma GCC unroll 2
    for (int i = 4; i < bits; ++i) load_line(quads, i, i - 4, fetch, above[i - 4]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      vi low[Width], high[Width];
      load_line(quads, i, i + bits - 4, fetch, low);
      for (int v = 0; v < Width; ++v) {
        high[v] = high_nibbles(low[v]);
        low[v] = low_nibbles(low[v]);
        if constexpr (bits > 4) {
          low[v] = either(low[v], bits_above<bits>(above[above_line<bits>(i)][v], i));
          high[v] = either(high[v], bits_above<bits>(above[above_line<bits>(i + 4)][v], i + 4));
        }
        if constexpr (Blocks::has_codes) {
          low[v] = look_up(coded, low[v]);
          high[v] = look_up(coded, high[v]);
        }
      }
      const int k = first / bits * 32 + i * 4;
      step(low, k, Half<0>());
      step(high, k + 16, Half<1>());
    }
  }
}

// acc += the dot products of a tile's rows and columns over `Lines` lines of a group, from `first`
// on. `quads` are those of its first column. Lines of two groups have two sums.
template <class Blocks, int Lines, int Sums, int Height, int Width, class X, class Fetch>
[[gnu::always_inline]] inline void dot_lines(const std::uint8_t* quads, const X& x, int begin,
                                             int first, Fetch& fetch,
                                             vi (&acc)[Sums][Height][Width]) {
  using Dot = QuadDot<Blocks::dot_bits>;
  constexpr int steps = 8 * Lines / Blocks::bits / Sums;  // of each sum
  typename Dot::Sums part[Sums][Height][Width];
  for (int i = 0; i < Sums; ++i)
    for_tile<Height, Width>([&](int r, int v) { part[i][r][v] = Dot::open(acc[i][r][v]); });
  int done[Sums] = {};
  for_quads<Blocks, Width, Lines>(
      quads, first, fetch,
      [&](const vi(&quad)[Width], int k, auto half) __attribute__((always_inline)) {
        constexpr int i = half.value % Sums;
        typename Dot::Weights w[Width];
        for (int v = 0; v < Width; ++v) w[v] = Dot::weights(quad[v]);
        const bool full = ++done[i] % Dot::most_steps == 0 && done[i] < steps;
        for_tile<Height, Width>([&](int r, int v) {
          auto& sums = part[i][r][v];
          sums = Dot::step(sums, w[v], x.quad(r, begin + k));
          if (full) sums = Dot::open(acc[i][r][v] = Dot::close(acc[i][r][v], sums));
        });
      });
  for (int i = 0; i < Sums; ++i)
    for_tile<Height, Width>(
        [&](int r, int v) { acc[i][r][v] = Dot::close(acc[i][r][v], part[i][r][v]); });
}

// The same over all `span` k from `begin` on.
template <class Blocks, int span, int Sums, int Height, int Width, class X, class Fetch>
[[gnu::always_inline]] inline void dot_products(const std::uint8_t* quads, const X& x, int begin,
                                                Fetch& fetch, vi (&acc)[Sums][Height][Width]) {
  constexpr int bits = Blocks::bits;
  constexpr int lines = span * bits / 32, rest = lines % lines_at_once<bits>;
  for (int first = 0; first < lines - rest; first += lines_at_once<bits>)
    dot_lines<Blocks, lines_at_once<bits>>(quads, x, begin, first, fetch, acc);
  if constexpr (rest > 0) dot_lines<Blocks, rest>(quads, x, begin, lines - rest, fetch, acc);
}

// Reads the blocks of a panel in place: those of `block` k, or the last one of fewer. Sums over a
// span have one multiplier.
template <int bits_, int group_, int block, int depth = block>
struct StoredBlocks {
  using Block = PackedBlock<bits_, group_, block, depth>;
  static constexpr int bits = bits_, packed_bits = bits, group = Block::group;
  static constexpr bool multiplied = Block::multiplied, has_zeros = Block::has_zeros;
  static constexpr bool has_minimums = Block::has_minimums, has_codes = Block::has_codes;
  static constexpr int scales = (depth + Block::scaled - 1) / Block::scaled;  // of a column and of x
  static constexpr int dot_bits = has_codes ? 8 : bits;
  static constexpr int span_of_last = group < stored<bits>(group) ? group : stored_together<bits>;
  static constexpr int span = Block::groups == 1 ? stored<bits>(depth)
                              : depth == block   ? group
                                                 : span_of_last;
  static constexpr int spans = stored<bits>(depth) / span;
  // Starts of a block: with minimums and multipliers those of two spans are one, in its halves.
  static constexpr bool paired = multiplied && has_minimums;
  static constexpr int starts = paired ? (spans + 1) / 2 : spans;
  // Spans whose quads lie in the same lines.
  static constexpr int together = span < stored<bits>(span) ? 2 : 1;

  const std::uint8_t* panel;

  Block packed(int index) const { return {panel + index * Block::bytes}; }
  const std::uint8_t* quads(int index) const { return packed(index).weights(); }
};

// What a level takes off unsigned weights before it multiplies them.
template <int bits>
inline constexpr int offset_removed = QuadDot<bits>::zero_point == 0 ? 1 << (bits - 1) : 0;

inline constexpr int word_pair(int low, int high) {
  return static_cast<int>((static_cast<unsigned>(low) & 0xffff) | static_cast<unsigned>(high) << 16);
}

// acc += start * zero over the groups of block `index` that have multipliers, two at a time: both
// are numbers of 16 bits.
template <int First, int Height, int Width, class X, class Blocks>
[[gnu::always_inline]] inline void take_zeros_off(const X& x, const Blocks& blocks, int index,
                                                  vi (&acc)[Height][Width]) {
  using Block = typename Blocks::Block;
  const auto packed = blocks.packed(index);
  for (int s = 0; s < Blocks::spans; s += 2) {
    const bool both = s + 1 < Blocks::spans;
    const int group = s * Blocks::span / Block::group, next = (s + 1) * Blocks::span / Block::group;
    vi zeros[Width];
    for (int v = 0; v < Width; ++v) {
      const vi low = packed.stored_zeros(First + v, group);
      const vi stored =
          both ? add(low, shift_left(packed.stored_zeros(First + v, next), 16)) : low;
      zeros[v] = add_in_words(stored, splat_int(word_pair(-Block::zero_offset, -Block::zero_offset)));
    }
    const int at = index * Blocks::spans + s;
    for_tile<Height, Width>([&](int r, int v) {
      const int starts = word_pair(x.start(r, at), both ? x.start(r, at + 1) : 0);
      acc[r][v] = add_products(acc[r][v], splat_int(starts), zeros[v]);
    });
  }
}

// part = what sums over span s of block `index` begin with.
template <int First, class Blocks, int Height, int Width, class X>
[[gnu::always_inline]] inline void start_sums(const X& x, const Blocks& blocks, int index, int s,
                                              vi (&part)[Height][Width]) {
  constexpr int bits = Blocks::dot_bits;
  const int at = index * Blocks::spans + s;
  if constexpr (Blocks::has_zeros && !Blocks::multiplied) {
    const auto packed = blocks.packed(index);
    vi zeros[Width];
    for (int v = 0; v < Width; ++v)
      zeros[v] = add(packed.zeros(First + v, s), splat_int(-offset_removed<bits>));
    for_tile<Height, Width>(
        [&](int r, int v) { part[r][v] = multiply(splat_int(x.start(r, at)), zeros[v]); });
  } else {
    constexpr bool unsigned_as_they_are =
        Blocks::has_zeros || Blocks::has_minimums || QuadDot<bits>::zero_point == 0;
    for_tile<Height, Width>([&](int r, int v) {
      part[r][v] = splat_int(unsigned_as_they_are ? 0 : x.start(r, at));
    });
  }
}

// Calls take(sums of span s of block `index`, s, i) for its spans, of vectors First ..
// First + Width - 1. Of spans whose quads lie in the same lines, i counts from 0.
template <int First, int Height, int Width, class X, class Blocks, class Fetch, class Take>
[[gnu::always_inline]] inline void for_spans(const X& x, const Blocks& blocks, int index,
                                             Fetch& fetch, Take take) {
  constexpr int span = Blocks::span, spans = Blocks::spans, sums = Blocks::together;
  const std::uint8_t* quads = blocks.quads(index) + First * lanes * 4;
  constexpr int step_bytes = quad_bytes * span * sums * Blocks::bits / 32;
  for (int s = 0; s < spans; s += sums, quads += step_bytes) {
    vi part[sums][Height][Width];
    for (int i = 0; i < sums; ++i) start_sums<First>(x, blocks, index, s + i, part[i]);
    dot_products<Blocks, span * sums>(quads, x, (index * spans + s) * span, fetch, part);
    for (int i = 0; i < sums; ++i) take(part[i], s, i);
  }
}

// acc = d over block `index`, of vectors First .. First + Width - 1.
template <int First, int Height, int Width, class X, class Blocks, class Fetch>
[[gnu::always_inline]] inline void block_sums(const X& x, const Blocks& blocks, int index,
                                              Fetch& fetch, vi (&acc)[Height][Width]) {
  constexpr bool zeros_follow = Blocks::has_zeros && Blocks::multiplied;
  const auto packed = blocks.packed(index);
  const auto take = [&](vi(&part)[Height][Width], int s, int i) __attribute__((always_inline)) {
    vi multiplier[Width];
    if constexpr (Blocks::multiplied)
      for (int v = 0; v < Width; ++v)
        multiplier[v] = packed.multipliers(First + v, s * Blocks::span / Blocks::group, i);
    for_tile<Height, Width>([&](int r, int v) {
      vi& sum = part[r][v];
      if constexpr (Blocks::multiplied) sum = multiply(sum, multiplier[v]);
      acc[r][v] = s + i == 0 ? sum : add(acc[r][v], sum);
    });
  };
  for_spans<First, Height, Width>(x, blocks, index, fetch, take);
  if constexpr (zeros_follow) take_zeros_off<First>(x, blocks, index, acc);
}

// acc = m over block `index`, of vectors First .. First + Width - 1.
template <int First, int Height, int Width, class X, class Blocks>
[[gnu::always_inline]] inline void minimum_sums(const X& x, const Blocks& blocks, int index,
                                                vi (&acc)[Height][Width]) {
  const int at = index * Blocks::starts;
  if constexpr (!Blocks::paired) {
    for_tile<Height, Width>([&](int r, int v) { acc[r][v] = splat_int(x.start(r, at)); });
  } else {
    const auto packed = blocks.packed(index);
    for (int pair = 0; pair < Blocks::starts; ++pair) {
      vi zeros[Width];
      for (int v = 0; v < Width; ++v) zeros[v] = packed.zero_pairs(First + v, pair);
      for_tile<Height, Width>([&](int r, int v) {
        const vi starts = splat_int(x.start(r, at + pair));
        acc[r][v] = add_products(pair == 0 ? splat_int(0) : acc[r][v], starts, zeros[v]);
      });
    }
  }
}

// The sums of a row as numbers; those of a further plane lie `step` further.
template <int Planes>
[[gnu::always_inline]] inline vf joined(const vi* sums, int step) {
  if constexpr (Planes == 1) return to_float(*sums);
  return fma(to_float(*sums), splat(high_unit), to_float(sums[step]));
}

// total += the sums of a block as numbers, times the scales of its columns and of rows of x.
template <int Planes, int Height, int Width, class X>
[[gnu::always_inline]] inline void add_scaled(const X& x, int index, const vf (&scales)[Width],
                                              const vi (&acc)[Planes * Height][Width],
                                              vf (&total)[Height][Width]) {
  for_tile<Height, Width>([&](int r, int v) {
    const vf scale = scales[v] * splat(x.scale(r, index));
    total[r][v] = fma(joined<Planes>(&acc[Planes * r][v], Width), scale, total[r][v]);
  });
}

// total += the sums of block `index`, whose groups have scales of their own.
template <int First, int Height, int Width, class X, class Blocks, class Fetch>
[[gnu::always_inline]] inline void add_groups(const X& x, const Blocks& blocks, int index,
                                              Fetch& fetch, vf (&total)[Height][Width]) {
  constexpr int planes = X::planes, groups = Blocks::Block::groups;
  const auto packed = blocks.packed(index);
  const auto take = [&](vi(&part)[planes * Height][Width], int s, int i)
      __attribute__((always_inline)) {
    const int group = s + i;
    if (group >= Blocks::scales) return;
    vf scales[Width];
    for (int v = 0; v < Width; ++v) scales[v] = packed.scales(First + v, group);
    add_scaled<planes>(x, index * groups + group, scales, part, total);
  };
  for_spans<First, planes * Height, Width>(x, blocks, index, fetch, take);
}

// sums[Height] of vectors First .. First + Width - 1, over blocks `range`. Start::resume continues
// sums in memory; a float32 loses nothing there.
template <int Height, int First, int Width, class X, class Blocks, class Fetch>
inline Fetch quantized_register_tile(const X& x, const Blocks& blocks, Range range, Fetch fetch,
                                     Rows<float> sums, Start start) {
  vf total[Height][Width];
  for_tile<Height, Width>([&](int r, int v) {
    total[r][v] = start == Start::zero ? zero() : load(sums[r] + (First + v) * lanes);
  });
  for (int index = range.begin; index < range.end; ++index) {
    const auto packed = blocks.packed(index);
    fetch.head(packed.data, Blocks::Block::weights_at);
    if constexpr (Blocks::Block::scales_apart) {
      add_groups<First>(x, blocks, index, fetch, total);
      continue;
    }
    vi acc[X::planes * Height][Width];
    block_sums<First>(x, blocks, index, fetch, acc);
    vf scales[Width];
    for (int v = 0; v < Width; ++v) scales[v] = packed.scales(First + v);
    add_scaled<X::planes>(x, index, scales, acc, total);
    if constexpr (Blocks::has_minimums) {
      minimum_sums<First>(x, blocks, index, acc);
      for (int v = 0; v < Width; ++v) scales[v] = packed.minimums(First + v);
      add_scaled<X::planes>(x, index, scales, acc, total);
    }
  }
  for_tile<Height, Width>([&](int r, int v) { store(sums[r] + (First + v) * lanes, total[r][v]); });
  return fetch;
}

// Rows of a tile, and vectors of a register tile of so many rows.
template <int Planes>
inline constexpr int tile_rows = tuned::quad_rows / Planes;
template <int Planes, int Height>
inline constexpr int tile_width = quad_tile_vectors * (tile_rows<Planes> / Height);

// A tile of rows times a panel, in as many register tiles as the level needs. A few rows read the
// panel in one stream.
template <int Height, int First = 0, class X, class Blocks, class Fetch>
inline void quantized_tile(const X& x, const Blocks& blocks, Range range, Fetch fetch,
                           Rows<float> sums, Start start) {
  constexpr int left = quantized_vectors - First;
  constexpr int most = tile_width<X::planes, Height>, width = left < most ? left : most;
  fetch = quantized_register_tile<Height, First, width>(x, blocks, range, fetch, sums, start);
  if constexpr (width < left)
    quantized_tile<Height, First + width>(x, blocks, range, fetch, sums, start);
}

// How a tile of so many rows, one of several, fetches its part of a block: once in so many lines
// of quads, which is often enough for two tiles, and so often in all.
template <int Planes, int Height, class Blocks>
struct SharedFetches {
  static constexpr int passes = num_row_tiles<tile_width<Planes, Height>>(quantized_vectors);
  static constexpr int every = passes * Blocks::bits / Blocks::packed_bits;
  static constexpr int lines = Blocks::span * Blocks::spans * Blocks::bits / 32;
  static constexpr int count = passes * (1 + num_row_tiles<every>(lines));
};

}  // namespace ingot
