// out[N, O] = x[N, K] W^T + bias, x in int8 and W in int8 or int4; see quantized_tile.h for the
// arithmetic.
//
// Threads divide the panels of columns. A few rows read every weight once, in sequence, at the
// speed of the memory. Many rows are taken in blocks that stay in the L2 cache while all panels
// pass over them; for those int4 is first unpacked to int8, a chunk of a panel that the L1 cache
// holds.
#pragma once

#include "linear.h"
#include "unpack.h"

namespace ingot {

// Rows that stay in the L2 cache while all panels pass over them: few enough to leave room for
// two panels, enough that the panels come from memory at a small part of its speed.
inline constexpr int rows_bytes = 384 << 10;
inline constexpr int least_block_rows = 24, most_block_rows = 96;  // multiples of the tiles
inline constexpr int least_unpacked_rows = 20;  // fewer do not earn what unpacking costs
inline constexpr int unpacked_bytes = 32 << 10;

// sums[rows] += those over blocks `range` of a panel, for several tiles of rows. Meanwhile `bytes`
// are fetched from `next` on: what the tiles after these read.
template <class Blocks>
inline void share_blocks(const QuantizedRows& x, int rows, const Blocks& blocks, Range range,
                         const std::uint8_t* next, int bytes, Rows<float> sums) {
  const int lines = (range.end - range.begin) * Blocks::span * Blocks::spans * Blocks::bits / 32;
  const int tiles = num_row_tiles<quad_tile_rows>(rows), part = bytes / tiles;
  const auto pace = static_cast<std::uint32_t>((static_cast<std::uint64_t>(part) << 16) / lines);
  for_row_tiles<quad_tile_rows>(rows, [&](auto height, int row, int number) {
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
  const float* bias;

  template <class Out>
  void run(Team team, int rows, Rows<const std::int8_t> x, Rows<const float> scales,
           Rows<Out> out) const {
    const Range mine = share(Panels::count, team);
    auto& scratch = team.workspace<Scratch>();
    const Rows<float> sums{scratch.sums[0], quantized_columns};
    for (int row = 0; row < rows; row += block_rows) {
      const int count = rows - row < block_rows ? rows - row : block_rows;
      const QuantizedRows part = start({x[row], x.stride}, {scales[row], scales.stride}, count,
                                       scratch.starts);
      for (int panel = mine.begin; panel < mine.end; ++panel) {
        const int next = panel + 1 < mine.end ? panel + 1 : mine.begin;
        product(part, count, {panels.panel(panel)}, panels.panel(next), scratch.unpacked, sums);
        write(sums, count, panel, Rows<Out>{out[row], out.stride});
      }
    }
  }

 private:
  using Stored = StoredBlocks<bits, group, block>;
  using Unpacked = UnpackedBlocks<group, block>;
  static constexpr int blocks = Panels::blocks;

  // A row of x with its scales and starts.
  static constexpr int row_bytes = Inputs + blocks * 8;
  static constexpr int most_rows = rows_bytes / row_bytes / quad_tile_rows * quad_tile_rows;
  static constexpr int block_rows = most_rows < least_block_rows  ? least_block_rows
                                    : most_rows > most_block_rows ? most_block_rows
                                                                  : most_rows;
  static constexpr int chunk = unpacked_bytes / (block * quantized_columns) + 1;  // in blocks

  struct Scratch {
    alignas(64) float sums[block_rows][quantized_columns];
    alignas(64) std::uint8_t unpacked[bits == 4 ? chunk * block * quantized_columns : 1];
    alignas(64) int starts[block_rows * blocks * Stored::spans];
  };

  static bool unpacks(int rows) {
    return bits == 4 && can_unpack && rows >= least_unpacked_rows;
  }

  static QuantizedRows start(Rows<const std::int8_t> x, Rows<const float> scales, int rows,
                             int* starts) {
    const int stride = unpacks(rows) ? fill_starts<8, block>(x, rows, starts)
                                     : fill_starts<bits, group>(x, rows, starts);
    return {x, scales, {starts, stride}};
  }

  // Returns how many starts a row has.
  template <int dot_bits, int span>
  static int fill_starts(Rows<const std::int8_t> x, int rows, int* starts) {
    constexpr int zero_point = QuadDot<dot_bits>::zero_point, count = Inputs / span;
    for (int r = 0; r < rows && zero_point != 0; ++r)
      for (int s = 0; s < count; ++s)
        starts[r * count + s] = -zero_point * sum_values<span>(x[r] + s * span);
    return count;
  }

  // sums[rows] = x times one panel; `next` is the panel that follows.
  [[gnu::noinline]] static void product(const QuantizedRows& x, int rows, Stored panel,
                                        const std::uint8_t* next, std::uint8_t* unpacked,
                                        Rows<float> sums) {
    if (rows <= quad_tile_rows)
      with_rows<quad_tile_rows>(rows, [&](auto height) {
        quantized_tile<height.value>(x, panel, {0, blocks}, FetchStream<bits>{}, sums,
                                     Start::zero);
      });
    else if (!unpacks(rows))
      share_blocks(x, rows, panel, {0, blocks}, next, Panels::panel_bytes, sums);
    else if constexpr (bits == 4)
      unpacked_product(x, rows, panel, next, unpacked, sums);
  }

  static void unpacked_product(const QuantizedRows& x, int rows, Stored panel,
                               const std::uint8_t* next, std::uint8_t* unpacked,
                               Rows<float> sums) {
    for (int begin = 0; begin < blocks; begin += chunk) {
      const Range range{begin, begin + chunk < blocks ? begin + chunk : blocks};
      const Unpacked chunked{panel, unpacked, begin};
      for (int index = range.begin; index < range.end; ++index)
        unpack(panel.packed(index), unpacked + chunked.offset(index));
      const auto* following = range.end < blocks ? panel.packed(range.end).data : next;
      share_blocks(x, rows, chunked, range, following,
                   (range.end - range.begin) * Panels::Block::bytes, sums);
    }
  }

  // out = sums + bias
  template <class Out>
  void write(Rows<float> sums, int rows, int panel, Rows<Out> out) const {
    const int first = panel * quantized_columns;
    const int width = Outputs - first < quantized_columns ? Outputs - first : quantized_columns;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < width; c += lanes) {
        const Part part{width - c < lanes ? width - c : lanes};
        vf value = load(sums[r] + c);
        if (bias != nullptr) value = value + load(bias + first + c, part);
        store(out[r] + first + c, value, part);
      }
  }
};

template <int bits, int group, int block, int Inputs, int Outputs, class Out>
[[gnu::noinline, gnu::noipa]]
void quantized_linear(Team team, int rows, Rows<const std::int8_t> x, Rows<const float> scales,
                      const std::uint8_t* weight, const float* bias, Rows<Out> out) {
  QuantizedLinear<bits, group, block, Inputs, Outputs>{{weight}, bias}.run(team, rows, x, scales,
                                                                          out);
}

}  // namespace ingot
