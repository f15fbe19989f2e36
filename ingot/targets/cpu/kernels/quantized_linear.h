// out[N, O] = x[N, K] W^T + bias, with x in int8 and W in int8 or int4. quantized_tile.h has the
// arithmetic.
//
// Threads divide the panels of columns. A few rows read every weight once, in sequence, at the
// speed of memory. Many rows come in blocks that stay in the L2 cache while all panels pass over
// them. For these, int4 is first unpacked to int8, in chunks of a panel that fit the L1 cache.
#pragma once

#include "linear.h"
#include "unpack.h"

namespace ingot {

// Rows that stay in the L2 cache while all panels pass over them: few enough to leave room for two
// panels, and enough that reading panels takes only a small part of the bandwidth.
inline constexpr int rows_bytes = 384 << 10;
inline constexpr int least_block_rows = 24, most_block_rows = 96;  // multiples of the tiles
inline constexpr int least_unpacked_rows = 20;  // for fewer, unpacking costs more than it saves
inline constexpr int unpacked_bytes = 32 << 10;

// The lowest of several tiles of nearly equal height.
inline constexpr int least_tile_rows = (quad_tile_rows + 1) / 2;

// Adds to sums[rows] those over blocks `range` of a panel, for several tiles of rows. Meanwhile it
// fetches `bytes` from `next` on, which the tiles after these read. Calls ahead_of(row, rows)
// before each tile that starts a panel.
template <class X, class Blocks, class Ahead>
inline void share_blocks(const X& x, int rows, const Blocks& blocks, Range range,
                         const std::uint8_t* next, int bytes, Rows<float> sums, Ahead ahead_of) {
  const int steps = (range.end - range.begin) * steps_per_block<Blocks>;
  const int tiles = num_row_tiles<quad_tile_rows>(rows), part = bytes / tiles;
  const auto pace = static_cast<std::uint32_t>((static_cast<std::uint64_t>(part) << 16) /
                                               (steps * line_bytes));
  for_row_tiles<quad_tile_rows, least_tile_rows>(rows, [&](auto height, int row, int number) {
    if (range.begin == 0) ahead_of(row, height.value);
    quantized_tile<height.value>(x.from(row), blocks, range,
                                 FetchShared{next + part * number, pace},
                                 Rows<float>{sums[row], sums.stride},
                                 range.begin == 0 ? Start::zero : Start::resume);
  });
}

template <int bits, int group, int block, int Inputs, int Outputs>
class QuantizedLinear {
 public:
  using Panels = QuantizedPanels<bits, group, block, Inputs, Outputs>;

  Panels panels;

  // x W^T + bias into a sink.
  template <class Sink>
  void run(Slice slice, Rows<const std::int8_t> x, Rows<const float> scales,
           const float* bias, const Sink& sink) const {
    using Unit = UnitPanels<Sink, quantized_columns>;
    const Range mine = share(Sink::count, slice.team);
    const int begin = mine.begin * Unit::count, end = mine.end * Unit::count;
    auto& memory = slice.team.workspace<Memory<Sink>>();
    const Rows<float> sums = memory.unit.rows();
    for (int row = slice.rows.begin; row < slice.rows.end; row += block_rows) {
      const int left = slice.rows.end - row, count = left < block_rows ? left : block_rows;
      const Operand part{x[row], scales[row], memory.starts};
      start(part, count, memory.starts);
      for (int at = begin; at < end; ++at) {
        const int next = Unit::panel(sink, slice.team, at + 1 < end ? at + 1 : begin);
        const int unit = sink.unit(slice.team, at / Unit::count), inside = at % Unit::count;
        product(part, count, {panels.panel(Unit::panel(sink, slice.team, at))}, panels.panel(next),
                memory.unpacked, {sums.data + inside * quantized_columns, sums.stride},
                [&](int r, int n) {
                  for (const int last = r + n; inside == 0 && r < last; ++r)
                    sink.fetch(unit, row + r);
                });
        if (inside + 1 < Unit::count) continue;
        if (bias != nullptr) add_bias<Sink>(bias, unit, count, sums);
        sink.take(unit, row, count, sums, memory.unit.scratch);
      }
    }
  }

 private:
  using Stored = StoredBlocks<bits, group, block>;
  using Unpacked = UnpackedBlocks<group, block>;
  static constexpr int blocks = Panels::blocks;

  // Sums start once for each group; in an unpacked product, once for each block.
  using Operand = QuantizedRows<Inputs, block, Stored::span>;

  // A row of x with its scales and starts.
  static constexpr int row_bytes = Inputs + blocks * 8;
  static constexpr int most_rows = rows_bytes / row_bytes / quad_tile_rows * quad_tile_rows;
  static constexpr int block_rows = most_rows < least_block_rows  ? least_block_rows
                                    : most_rows > most_block_rows ? most_block_rows
                                                                  : most_rows;
  static constexpr int chunk = unpacked_bytes / (block * quantized_columns) + 1;  // in blocks

  template <class Sink>
  struct Memory {
    UnitMemory<Sink, block_rows> unit;
    alignas(64) std::uint8_t unpacked[bits == 4 ? chunk * block * quantized_columns : 1];
    alignas(64) int starts[block_rows * blocks * Stored::spans];
  };

  static bool unpacks(int rows) {
    return bits == 4 && fast_bytes && rows >= least_unpacked_rows;
  }

  static void start(const Operand& x, int rows, int* starts) {
    if (unpacks(rows))
      fill_starts<QuadDot<8>::zero_point, block>(x, rows, starts);
    else
      fill_starts<Stored::has_zeros ? 1 : QuadDot<bits>::zero_point, Stored::span>(x, rows, starts);
  }

  template <int zero_point, int span>
  static void fill_starts(const Operand& x, int rows, int* starts) {
    for (int s = 0; s < rows * (Inputs / span) && zero_point != 0; ++s)
      starts[s] = -zero_point * sum_values<span>(x.values + s * span);
  }

  // sums[rows] = x times one panel; `next` is the panel that follows.
  template <class Ahead>
  [[gnu::noinline]] static void product(const Operand& x, int rows, Stored panel,
                                        const std::uint8_t* next, std::uint8_t* unpacked,
                                        Rows<float> sums, Ahead ahead_of) {
    if (rows <= quad_tile_rows)
      stream_product(x, rows, panel, next, sums);
    else if (!unpacks(rows))
      share_blocks(x, rows, panel, {0, blocks}, next, Panels::panel_bytes, sums, ahead_of);
    else if constexpr (bits == 4)
      unpacked_product(x, rows, panel, next, unpacked, sums, ahead_of);
  }

  // The last blocks fetch the start of the next panel.
  static void stream_product(const Operand& x, int rows, Stored panel,
                             const std::uint8_t* next, Rows<float> sums) {
    constexpr int last = quads_ahead<bits> / Panels::Block::bytes + 1;
    constexpr int turn = last < blocks ? blocks - last : 0;
    const Range parts[] = {{0, turn}, {turn, blocks}};
    with_rows<quad_tile_rows>(rows, [&](auto height) {
      for (const Range range : parts) {
        const auto ahead = range.end < blocks ? quads_ahead<bits> : next - panel.packed(turn).data;
        quantized_tile<height.value>(x, panel, range, FetchStream{ahead}, sums,
                                     range.begin == 0 ? Start::zero : Start::resume);
      }
    });
  }

  template <class Ahead>
  static void unpacked_product(const Operand& x, int rows, Stored panel,
                               const std::uint8_t* next, std::uint8_t* unpacked,
                               Rows<float> sums, Ahead ahead_of) {
    for (int begin = 0; begin < blocks; begin += chunk) {
      const Range range{begin, begin + chunk < blocks ? begin + chunk : blocks};
      const Unpacked chunked{panel, unpacked, begin};
      for (int index = range.begin; index < range.end; ++index)
        unpack(panel.packed(index), unpacked + chunked.offset(index));
      const auto* following = range.end < blocks ? panel.packed(range.end).data : next;
      share_blocks(QuantizedRows<Inputs, block, block>{x.values, x.scales, x.starts}, rows, chunked,
                   range, following,
                   (range.end - range.begin) * Panels::Block::bytes, sums, ahead_of);
    }
  }
};

template <int bits, int group, int block, int Inputs, int Outputs, class Out>
[[gnu::noinline, gnu::noipa]]
void quantized_linear(Slice slice, Rows<const std::int8_t> x, Rows<const float> scales,
                      const std::uint8_t* weight, const float* bias, Rows<const float> residual,
                      Rows<Out> out) {
  const Store<quantized_columns, Outputs, Out> sink{{}, residual, out};
  QuantizedLinear<bits, group, block, Inputs, Outputs>{{weight}}.run(slice, x, scales, bias,
                                                                    sink);
}

// See linear_soft_cap.
template <int bits, int group, int block, int Inputs, int Outputs, class Out>
[[gnu::noinline, gnu::noipa]]
void quantized_linear_soft_cap(Slice slice, Rows<const std::int8_t> x, Rows<const float> scales,
                               const std::uint8_t* weight, const float* bias, float cap,
                               Rows<Out> out) {
  const StoreCapped<quantized_columns, Outputs, Out> sink{{}, cap, out};
  QuantizedLinear<bits, group, block, Inputs, Outputs>{{weight}}.run(slice, x, scales, bias,
                                                                    sink);
}

// See gated_linear. A unit is 64 columns of each half: two panels.
template <class Activation, int bits, int group, int block, int Inputs, int Outputs, class Out>
[[gnu::noinline, gnu::noipa]]
void quantized_gated_linear(Slice slice, Rows<const std::int8_t> x,
                            Rows<const float> scales, const std::uint8_t* weight,
                            const float* bias, Rows<Out> out) {
  const Gate<2 * quantized_columns, Outputs, Activation, Out> sink{{}, out};
  QuantizedLinear<bits, group, block, Inputs, Outputs>{{weight}}.run(slice, x, scales, bias,
                                                                    sink);
}

// The same, rounded to int8. Units are just large enough to have whole groups of results.
template <class Activation, int result_group, int bits, int group, int block, int Inputs,
          int Outputs>
[[gnu::noinline, gnu::noipa]]
void quantized_gated_linear_quantize(Slice slice, Rows<const std::int8_t> x,
                                     Rows<const float> scales, const std::uint8_t* weight,
                                     const float* bias, Rows<std::int8_t> values,
                                     Rows<float> value_scales) {
  constexpr int least = 2 * quantized_columns;
  constexpr int columns = result_group > least ? result_group : least;
  const GateQuantize<columns, Outputs, Activation, result_group> sink{{}, values, value_scales};
  QuantizedLinear<bits, group, block, Inputs, Outputs>{{weight}}.run(slice, x, scales, bias,
                                                                    sink);
}

}  // namespace ingot
