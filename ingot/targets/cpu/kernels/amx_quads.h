// Products of rows of x and a block of a panel of quantized_panels.h, in tiles of AMX.
//
// Weights of a block become signed bytes, and stay in tiles while all rows pass over them, 16 at a
// time. Tiles add up exact integers, and vectors scale these as they do in quantized_tile.h. So the
// bits do not depend on who adds up.
//
// Three things take about as long as each other: products, signing and scaling. So while tiles add
// up some rows over a block, vectors sign weights of the next block, and scale what has left tiles
// before. Lines of the next panel are fetched in between, as many as were read.
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

// The parts of a block that are signed one after the other, and the lines that each reads.
template <class Block>
inline constexpr int signed_parts =
    Block::bits < 8 ? unpacked_parts<Block> : Block::stored_depth / 4;
template <class Block>
inline constexpr int signed_lines = Block::bits < 8 ? Block::bits : quad_bytes / line_bytes;

// Makes signed bytes of the weights of a block, times their multipliers and in int4 less their
// zeros, part by part.
template <class Block>
class Signing {
 public:
  Signing(Block from, std::uint8_t* to) : from_(from), factors_(from), to_(to) {}

  [[gnu::always_inline]] void sign(int part) const {
    if constexpr (Block::bits < 8) return unpack_part<true>(from_, factors_, part, to_);
    for (int at = part * quad_bytes; at < (part + 1) * quad_bytes; at += lanes * 4)
      store_quads(to_ + at, less_128(load_quads(from_.weights() + at)));
  }
  void sign_all() const {
    for (int part = 0; part < signed_parts<Block>; ++part) sign(part);
  }

 private:
  Block from_;
  UnpackFactors<Block> factors_;
  std::uint8_t* to_;
};

// Signs a block in so many turns, and fetches as many lines as it reads. Both are spread evenly, as
// many fetches at once hold up loads. If it does not sign, it only fetches.
template <class Block>
class SigningTurns {
 public:
  SigningTurns(const Signing<Block>& signing, bool signs, int turns, LineFetch& fetch)
      : signing_(signing),
        signs_(signs),
        fetch_(fetch),
        pace_(((parts << 16) + turns - 1) / turns) {
    fetch_((Block::bytes - parts * signed_lines<Block> * line_bytes) / line_bytes);
  }

  [[gnu::always_inline]] void turn() {
    for (due_ += pace_; due_ >= 1 << 16; due_ -= 1 << 16, ++part_) {
      if (signs_) signing_.sign(part_);
      fetch_(signed_lines<Block>);
    }
  }

 private:
  static constexpr int parts = signed_parts<Block>;
  Signing<Block> signing_;
  bool signs_;
  LineFetch& fetch_;
  std::int64_t pace_, due_ = 0;  // in parts of 2^-16
  int part_ = 0;
};

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
      if constexpr (keeps_zeros<Block>) zeros_[v] = add(block.zeros(v, 0), splat_int(-128));
    }
  }

  // Of the planes of one row.
  template <class X>
  [[gnu::always_inline]] void add_scaled(const int* integers, const X& x, int index,
                                         float* sums) const {
    const vf x_scale = splat(x.scale(0, index));
#pragma GCC unroll 2
    for (int v = 0; v < quantized_vectors; ++v) {
      vi all[X::planes];
      for (int p = 0; p < X::planes; ++p) {
        const int* from = integers + p * quantized_columns + v * lanes;
        all[p] = load_quads(reinterpret_cast<const std::uint8_t*>(from));
        if constexpr (keeps_zeros<Block>)
          all[p] = add(all[p], multiply(splat_int(x.start(p, index)), zeros_[v]));
      }
      float* to = sums + v * lanes;
      store(to, fma(joined<X::planes>(all, 1), scales_[v] * x_scale, load(to)));
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

  // What stays in tiles.
  static void start(const std::uint8_t* weights) {
    if constexpr (stays)
      for_constants<steps>([&](auto number) { load_columns<number>(weights, number); });
  }
  static void start(Rows<const std::int8_t> x) {
    if constexpr (stays) for_constants<steps>([&](auto number) { load_rows<number>(x, number); });
  }

  // The sums of 16 rows. Those that stay are in their tiles, and make room for the next ones as
  // soon as they are multiplied. Calls other(part) for all parts.
  template <class Other>
  [[gnu::always_inline]] static void add_up(Rows<const std::int8_t> x, Rows<const std::int8_t> next,
                                            const std::uint8_t* weights, int* sums, Other other) {
    amx::zero<0>();
    amx::zero<1>();
    for_constants<parts / 2>([&](auto number) __attribute__((always_inline)) {
      if constexpr (!stays) load_step<number>(x, weights, number);
      amx::multiply_bytes<0, 2 + number, 4 + 2 * number>();
      other(2 * number);
      amx::multiply_bytes<1, 2 + number, 5 + 2 * number>();
      if constexpr (stays) load_rows<number>(next, number);
      other(2 * number + 1);
    });
    for (int s = 2; s < steps; ++s) {
      load_step<0>(x, weights, s);
      amx::multiply_bytes<0, 2, 4>();
      amx::multiply_bytes<1, 2, 5>();
    }
    amx::store<0>(sums, quad_bytes);
    amx::store<1>(sums + amx::columns, quad_bytes);
  }

 private:
  template <int number>
  static void load_rows(Rows<const std::int8_t> x, int s) {
    amx::load_once<2 + number>(x.data + s * step, x.stride);
  }
  template <int number>
  static void load_columns(const std::uint8_t* weights, int s) {
    const std::uint8_t* from = weights + s * step * quantized_columns;
    amx::load<4 + 2 * number>(from, quad_bytes);
    amx::load<5 + 2 * number>(from + quad_bytes / 2, quad_bytes);
  }
  template <int number>
  static void load_step(Rows<const std::int8_t> x, const std::uint8_t* weights, int s) {
    load_rows<number>(x, s);
    load_columns<number>(weights, s);
  }
};

// Planes of the rows of x. The last of them, if fewer than 16, are in memory for as many.
template <class X>
struct TiledRows {
  X all, last;
  int count;

  TiledRows(const X& x, int planes, const std::int8_t* rest)
      : all(x), last(x.from(planes / amx::most_rows * amx::most_rows / X::planes)), count(planes) {
    last.values = rest;
  }

  int height(int plane) const {
    return count - plane < amx::most_rows ? count - plane : amx::most_rows;
  }
  X from(int plane) const {
    return height(plane) == amx::most_rows ? all.from(plane / X::planes) : last;
  }
};

// What a thread makes of blocks on their way through tiles. Blocks that do not stay in tiles are
// large, and there is no room for two of them.
template <int block>
struct AmxMemory {
  static constexpr int buffers = AmxBlock<block>::stays ? 2 : 1;
  alignas(64) std::uint8_t weights[buffers][block * quantized_columns];
  alignas(64) int integers[2][amx::most_rows * quantized_columns];
  const std::uint8_t* held;  // the block whose weights are in weights[buffer]
  int buffer;
  int depth;  // of the blocks that tiles have the shape for

  void start() {
    held = nullptr;
    buffer = depth = 0;
  }
};

// Integers that have left tiles and wait to be scaled.
template <class X>
struct WaitingSums {
  X x;
  int block, planes;
  const int* integers;
  Rows<float> sums;

  template <class Scales>
  [[gnu::always_inline]] void scale(const Scales& scales, Range part) const {
    for (int p = part.begin; p < part.end && p < planes; p += X::planes) {
      const int row = p / X::planes;
      scales.add_scaled(integers + p * quantized_columns, x.from(row), block, sums[row]);
    }
  }
};

// Adds to the sums of all rows those over `count` blocks of a panel. Meanwhile it signs the block
// that comes after them, if `following` is one. Calls before(row, rows) before tiles add up so many
// rows over the first block.
template <int depth, class X, class Blocks, int block, class Before>
inline void amx_blocks(const TiledRows<X>& x, const Blocks& blocks, int count,
                       const std::uint8_t* following, LineFetch& fetch, AmxMemory<block>& memory,
                       Rows<float> sums, Before before) {
  using Block = typename Blocks::Block;
  using Tiles = AmxBlock<depth>;
  constexpr int each = amx::most_rows / Tiles::parts, buffers = AmxMemory<block>::buffers;
  const int turns = num_row_tiles<amx::most_rows>(x.count) * Tiles::parts;
  const auto rows = [&](int row, int i) -> Rows<const std::int8_t> {
    return {x.from(row).values + i * depth, X::stride};
  };
  if (memory.depth != depth) Tiles::configure();
  memory.depth = depth;
  Tiles::start(rows(0, 0));
  WaitingSums<X> waiting{x.all, 0, 0, nullptr, sums};
  for (int i = 0, number = 0; i < count; ++i) {
    const Block now = blocks.packed(i);
    const std::uint8_t* next = i + 1 < count ? blocks.packed(i + 1).data : following;
    const bool signs = buffers > 1 && next != nullptr;
    std::uint8_t* weights = memory.weights[memory.buffer];
    if (memory.held != now.data) Signing<Block>(now, weights).sign_all();
    memory.buffer = (memory.buffer + 1) % buffers;
    memory.held = signs ? next : nullptr;
    SigningTurns<Block> signing({signs ? Block{next} : now, memory.weights[memory.buffer]}, signs,
                                turns, fetch);
    Tiles::start(weights);
    for (int plane = 0; plane < x.count; plane += amx::most_rows, ++number) {
      const int height = x.height(plane), row = plane / X::planes;
      if (i == 0) before(row, height / X::planes);
      const bool turns_back = plane + height == x.count, ends = turns_back && i + 1 == count;
      int* integers = memory.integers[number % 2];
      const BlockScales<Block> scales(blocks.packed(waiting.block));
      Tiles::add_up(rows(plane, i),
                    rows(turns_back ? 0 : plane + height, turns_back && !ends ? i + 1 : i), weights,
                    integers, [&](int part) __attribute__((always_inline)) {
                      signing.turn();
                      waiting.scale(scales, {part * each, (part + 1) * each});
                    });
      waiting = {x.from(plane), i, height, integers, {sums[row], sums.stride}};
    }
  }
  waiting.scale(BlockScales<Block>(blocks.packed(waiting.block)), {0, amx::most_rows});
}

}  // namespace ingot
