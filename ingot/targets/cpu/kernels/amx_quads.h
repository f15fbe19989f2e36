// Products of rows of x and a block of a panel of quantized_panels.h, in tiles of AMX.
//
// Weights of a block become signed bytes, and stay in tiles while all rows pass over them, 16 at a
// time. Tiles add up exact integers, and vectors scale these as they do in quantized_tile.h. So the
// bits do not depend on who adds up.
//
// Integers leave tiles through memory, and scaling them takes about as long as 128 k take the
// tiles. So those of some rows are scaled while tiles add up those of the next ones.
#pragma once

#include "amx_panel.h"
#include "unpack.h"

namespace ingot {

// The k that tiles add up at once: as many whole quads as divide a block.
constexpr int amx_step(int depth) {
  int step = amx::byte_depth;
  while (step > 0 && depth % step != 0) step -= 4;
  return step;
}

// Whether tiles are at least half full.
constexpr bool fits_tiles(int depth) { return amx_step(depth) >= amx::byte_depth / 2; }

// Weights of a block, times their multipliers and in int4 less their zeros, as signed bytes.
template <int bits, int group, int block, int depth>
inline void unpack_signed(PackedBlock<bits, group, block, depth> from, std::uint8_t* to) {
  if constexpr (bits == 4) unpack(from, to);
  const std::uint8_t* bytes = bits == 4 ? to : from.weights();
  for (int i = 0; i < depth * quantized_columns; i += lanes * 4)
    store_quads(to + i, less_128(load_quads(bytes + i)));
}

// Whether weights still have zeros when they are signed bytes.
template <class Block>
inline constexpr bool keeps_zeros = Block::has_zeros && Block::bits == 8;

// What makes numbers of integer sums over a block, and adds them to other sums.
template <class Block>
class BlockScales {
 public:
  explicit BlockScales(Block block) {
    for (int v = 0; v < quantized_vectors; ++v) {
      scales_[v] = block.scales(v);
      if constexpr (keeps_zeros<Block>) zeros_[v] = add(block.zeros(v), splat_int(-128));
    }
  }

  template <class X>
  [[gnu::always_inline]] void add_scaled(const int* integers, const X& x, int index,
                                         float* sums) const {
    const vf x_scale = splat(x.scale(0, index));
#pragma GCC unroll 2
    for (int v = 0; v < quantized_vectors; ++v) {
      vi sum = load_quads(reinterpret_cast<const std::uint8_t*>(integers + v * lanes));
      if constexpr (keeps_zeros<Block>)
        sum = add(sum, multiply(splat_int(x.start(0, index)), zeros_[v]));
      float* to = sums + v * lanes;
      store(to, fma(to_float(sum), scales_[v] * x_scale, load(to)));
    }
  }

 private:
  vf scales_[quantized_vectors];
  vi zeros_[quantized_vectors];
};

// Sums over blocks of `depth` k, in tiles 0 and 1. Tiles 2 and 3 hold rows, the others columns.
template <int depth>
struct AmxBlock {
  static constexpr int step = amx_step(depth), steps = depth / step;
  static constexpr bool stays = steps <= 2;            // whether tiles hold all columns
  static constexpr int parts = stays ? 2 * steps : 4;  // of other work, done between products

  static void configure() {
    amx::Shape shape;
    for (const int tile : {2, 3}) shape.row_bytes[tile] = step;
    for (const int tile : {4, 5, 6, 7}) shape.rows[tile] = step / 4;
    amx::configure(shape);
  }

  template <int number>
  static void load_columns(const std::uint8_t* step_weights) {
    amx::load<4 + 2 * number>(step_weights, quad_bytes);
    amx::load<5 + 2 * number>(step_weights + quad_bytes / 2, quad_bytes);
  }

  static void start(const std::uint8_t* weights) {
    if constexpr (stays)
      for_constants<steps>([&](auto number) {
        load_columns<number>(weights + number * step * quantized_columns);
      });
  }

  // The sums of 16 rows. Calls other(part) for all parts.
  template <class Other>
  [[gnu::always_inline]] static void add_up(Rows<const std::int8_t> x, const std::uint8_t* weights,
                                            int* sums, Other other) {
    amx::zero<0>();
    amx::zero<1>();
    for_constants<stays ? steps : 2>([&](auto number) __attribute__((always_inline)) {
      add_step<number>(x, weights, number);
      other(2 * number);
      amx::multiply_bytes<1, 2 + number, 5 + 2 * number>();
      other(2 * number + 1);
    });
    for (int s = 2; s < steps; ++s) {
      add_step<0>(x, weights, s);
      amx::multiply_bytes<1, 2, 5>();
    }
    amx::store<0>(sums, quad_bytes);
    amx::store<1>(sums + amx::columns, quad_bytes);
  }

 private:
  template <int number>
  [[gnu::always_inline]] static void add_step(Rows<const std::int8_t> x,
                                              const std::uint8_t* weights, int s) {
    amx::load_once<2 + number>(x.data + s * step, x.stride);
    if constexpr (!stays) load_columns<number>(weights + s * step * quantized_columns);
    amx::multiply_bytes<0, 2 + number, 4 + 2 * number>();
  }
};

// Rows of x. The last of them, if fewer than 16, are in memory for as many.
template <class X>
struct TiledRows {
  X all, last;
  int count;

  TiledRows(const X& x, int rows, const std::int8_t* rest)
      : all(x), last(x.from(rows / amx::most_rows * amx::most_rows)), count(rows) {
    last.values = rest;
  }

  int height(int row) const { return count - row < amx::most_rows ? count - row : amx::most_rows; }
  X from(int row) const { return height(row) == amx::most_rows ? all.from(row) : last; }
};

// Adds to the sums of all rows those over a block. Calls before(row, rows) before tiles add up so
// many rows.
template <int depth, class X, class Block, class Before>
inline void amx_block(const TiledRows<X>& x, Block block, int index, std::uint8_t* weights,
                      int* integers, Rows<float> sums, Before before) {
  using Tiles = AmxBlock<depth>;
  constexpr int each = amx::most_rows / Tiles::parts;
  const BlockScales<Block> scales(block);
  unpack_signed(block, weights);
  Tiles::start(weights);
  const auto scale = [&](const X& rows, int row, int r) __attribute__((always_inline)) {
    scales.add_scaled(integers + r * quantized_columns, rows.from(r), index, sums[row + r]);
  };
  X last = x.from(0);
  int row = 0, height = x.height(0);
  before(0, height);
  Tiles::add_up({last.values + index * depth, X::stride}, weights, integers, [](int) {});
  while (row + height < x.count) {
    const int next = row + height;
    const X now = x.from(next);
    before(next, x.height(next));
    Tiles::add_up({now.values + index * depth, X::stride}, weights, integers,
                  [&](int part) __attribute__((always_inline)) {
#pragma GCC unroll 8
                    for (int r = part * each; r < (part + 1) * each; ++r) scale(last, row, r);
                  });
    last = now, row = next, height = x.height(next);
  }
  for (int r = 0; r < height; ++r) scale(last, row, r);
}

}  // namespace ingot
