// out[N, O] = x[N, K] W^T + bias, with x in int8 or int16 and W in 4 to 8 bits. quantized_tile.h has
// the arithmetic.
//
// Threads divide the panels of columns. A few rows read every weight once, in sequence, at the
// speed of memory. Many rows come in blocks that stay in the L2 cache while all panels pass over
// them. For these, fewer bits than 8 may first become bytes, in chunks of a panel that fit the L1 cache.
// Where the target has tiles of bytes, these multiply all but a few rows; see amx_quads.h.
#pragma once

#include "amx_quads.h"
#include "linear.h"

namespace ingot {

// Rows that stay in the L2 cache while all panels pass over them: few enough to leave room for two
// panels, and enough that reading panels takes only a small part of the bandwidth.
inline constexpr int rows_bytes = tuned::core_cache / 8 * 3;
inline constexpr int least_block_rows = 24, most_block_rows = 96;  // multiples of the tiles
inline constexpr int unpacked_bytes = 32 << 10;

// The same of rows that tiles multiply. These need a panel so soon that more rows have to share it.
inline constexpr int tiled_rows_bytes = tuned::core_cache / 2, most_tiled_rows = 256;
inline constexpr int least_amx_block = 64;  // sums of fewer k take as long to scale as to add up
inline constexpr int most_amx_block = 16 << 10, most_amx_inputs = 64 << 10;  // for their memory
// Vectors are as fast with fewer rows. Blocks that do not stay in tiles are read for every 16 rows.
template <int bits, int block>
inline constexpr int least_tiled_rows = block > 2 * amx::byte_depth ? 40 : bits < 8 ? 8 : 12;

// Rows that so many bytes hold, in multiples.
constexpr int rows_within(int bytes, int row_bytes, int multiple, int least, int most) {
  const int rows = bytes / row_bytes / multiple * multiple;
  return rows < least ? least : rows > most ? most : rows;
}

// The lowest of several tiles of nearly equal height.
template <int Planes>
inline constexpr int least_tile_rows = (tile_rows<Planes> + 1) / 2;

// What a caller does with rows of a panel: before(row, rows) before tiles begin their sums, if they
// are many, and after(row, rows) when the sums are complete. What is stored for one tile then goes
// out while the next tile multiplies; all at once it would hold up the thread.
template <class Before, class After>
struct AroundRows {
  Before before;
  After after;
};
template <class Before, class After>
AroundRows(Before, After) -> AroundRows<Before, After>;

// Whether blocks are the first of a panel, and the last.
struct PanelPart {
  bool begins, ends;
};

// Adds to sums[rows] those over blocks `range` of a panel, for several tiles of rows. Meanwhile it
// fetches `bytes` from `next` on, which the tiles after these read.
template <class X, class Blocks, class Around>
inline void share_blocks(Team team, const X& x, int rows, const Blocks& blocks, Range range,
                         PanelPart of, const std::uint8_t* next, int bytes, Rows<float> sums,
                         const Around& around) {
  constexpr int most = tile_rows<X::planes>;
  const int tiles = num_row_tiles<most>(rows), part = bytes / tiles;
  const int blocks_read = range.end - range.begin;
  NextAttention* const attention = next_attention(team, tiles, Blocks::packed_bits);
  for_row_tiles<most, least_tile_rows<X::planes>>(rows, [&](auto height, int row, int number) {
    if (of.begins) around.before(row, height.value);
    using Fetches = SharedFetches<X::planes, height.value, Blocks>;
    const int steps = blocks_read * Fetches::count;
    const std::uint64_t pace = (static_cast<std::uint64_t>(part) << 16) / (steps * line_bytes);
    const int later = blocks_read * Fetches::passes * Fetches::lines / lines_for_attention;
    const FetchShared<Fetches::every> fetch{next + part * number, static_cast<std::uint32_t>(pace),
                                            take_lines(attention, later)};
    quantized_tile<height.value>(x.from(row), blocks, range, fetch,
                                 Rows<float>{sums[row], sums.stride},
                                 of.begins ? Start::zero : Start::resume);
    if (of.ends) around.after(row, height.value);
  });
}

// `X` is the type of x: in int16, a row has two planes.
template <int bits, int group, int block, int Inputs, int Outputs, class X>
class QuantizedLinear {
 public:
  static constexpr int planes = sizeof(X);
  using Panels = QuantizedPanels<bits, group, block, Inputs, Outputs>;

  Panels panels;

  // x W^T + bias into a sink.
  template <class Sink>
  void run(Slice slice, Rows<const X> x, Rows<const float> scales, const float* bias,
           const Sink& sink) const {
    using Unit = UnitPanels<Sink, quantized_columns>;
    const Range mine = share(Sink::count, slice.team);
    const int begin = mine.begin * Unit::count, end = mine.end * Unit::count;
    auto& memory = slice.team.large_workspace<Memory<Sink>>();
    const Rows<float> sums = memory.unit.rows();
    for (int row = slice.rows.begin; row < slice.rows.end; row += block_rows) {
      const int left = slice.rows.end - row, count = left < block_rows ? left : block_rows;
      const Operands part = operands(x[row], scales[row], memory.own);
      start(part, count, memory.own);
      for (int at = begin; at < end; ++at) {
        const int next = Unit::panel(sink, slice.team, at + 1 < end ? at + 1 : begin);
        const int unit = sink.unit(slice.team, at / Unit::count), inside = at % Unit::count;
        const auto before = [&](int r, int n) {
          for (const int last = r + n; inside == 0 && r < last; ++r) sink.fetch(unit, row + r);
        };
        const auto after = [&](int r, int n) __attribute__((noinline)) {  // all tiles call it
          if (inside + 1 < Unit::count) return;
          const Rows<float> done{sums[r], sums.stride};
          if (bias != nullptr) add_bias<Sink>(bias, unit, n, done);
          sink.take(unit, row + r, n, done, memory.unit.scratch);
        };
        product(slice.team, part, count, panels.panel(Unit::panel(sink, slice.team, at)),
                panels.panel(next), memory.own, {sums.data + inside * quantized_columns, sums.stride},
                AroundRows{before, after});
      }
    }
  }

  using In = typename Panels::In;
  using Stored = StoredBlocks<bits, group, block>;
  using Last = StoredBlocks<bits, group, block, In::last>;

  // Sums start once for each span of the whole blocks, and of the last one; in an unpacked product,
  // once for each block.
  static constexpr int depth = In::last == stored<bits>(In::last) ? 0 : In::last;
  static constexpr int row_scales = (Inputs + Panels::Block::scaled - 1) / Panels::Block::scaled;
  template <int starts>
  using WholeRows = QuantizedRows<planes, Inputs, row_scales, In::whole * starts>;
  template <int starts>
  using LastRows = QuantizedRows<planes, Inputs, row_scales, starts, depth>;

  struct Operands {
    WholeRows<Stored::starts> whole;
    LastRows<Last::starts> last;
  };

  // A row of x with its scales and starts.
  static constexpr int row_bytes = planes * (Inputs + In::count * 4) + row_scales * 4;
  static constexpr bool two_level = Panels::Block::two_level;
  static constexpr bool tiled = amx::has_bytes && !two_level &&
                                fits_tiles(In::whole > 0 ? block : In::last) &&
                                (!In::any_left || fits_tiles(In::last)) &&
                                block >= least_amx_block && block <= most_amx_block &&
                                Inputs <= most_amx_inputs;
  static constexpr int block_rows =
      tiled ? rows_within(tiled_rows_bytes, row_bytes, amx::most_rows, amx::most_rows,
                          most_tiled_rows)
            : rows_within(rows_bytes, row_bytes, tile_rows<planes>, least_block_rows,
                          most_block_rows);
  // Nibbles that keep what is stored are as fast as bytes, unless groups are half a line or have
  // multipliers of 6 bits.
  static constexpr bool worth_unpacking =
      bits > 4 || !keeps_integers<typename Panels::Block> || Stored::together > 1 || Stored::paired;
  static constexpr bool unpackable = bits < 8 && !tiled && unpacking_pays && worth_unpacking;
  static constexpr bool by_span = keeps_spans<typename Panels::Block>;  // in unpacked blocks
  static constexpr int whole_starts = by_span ? Stored::starts : 1;  // of rows of unpacked blocks
  static constexpr int last_starts = by_span ? Last::starts : 1;
  static constexpr bool needs_starts = !tiled || keeps_zeros<typename Panels::Block>;
  static constexpr int chunk = tiled ? 1 : unpacked_bytes / (block * quantized_columns) + 1;
  static constexpr Start after_whole = In::whole > 0 ? Start::resume : Start::zero;

  // What a thread makes of rows of x and of panels.
  struct Own {
    static constexpr int rows = needs_starts ? planes * block_rows : least_tiled_rows<bits, block>;
    alignas(64) std::uint8_t unpacked[unpackable ? chunk * UnpackedBlocks<Stored, block>::bytes : 1];
    std::conditional_t<tiled, AmxMemory<block>, char> amx;
    alignas(64) std::int8_t rest[tiled ? amx::most_rows * Inputs : 1];
    alignas(64) int starts[rows * In::whole * Stored::starts + 1];
    int last[In::any_left ? rows * Last::starts : 1];
  };

  static Operands operands(const X* x, const float* scales, const Own& own) {
    const auto* values = reinterpret_cast<const std::int8_t*>(x);
    return {{values, scales, own.starts},
            {values + In::whole * block, scales + In::whole * Stored::scales, own.last}};
  }

  static bool takes_tiles(int rows) {
    return tiled && planes * rows >= least_tiled_rows<bits, block>;
  }
  static bool unpacks(int rows) { return unpackable && planes * rows >= tuned::unpacked_rows; }

  // What a product of these rows needs.
  static void start(const Operands& x, int rows, Own& memory) {
    if (takes_tiles(rows)) {
      const int all = planes * rows, rest = all % amx::most_rows;
      std::memcpy(memory.rest, x.whole.values + (all - rest) * Inputs, rest * Inputs);
      if constexpr (tiled) memory.amx.start();
      if (!needs_starts) return;
    }
    constexpr int before_last = In::whole * block;
    constexpr int left = In::any_left ? In::last : 0;
    constexpr bool needs_sums = Stored::has_zeros || Stored::has_minimums;
    constexpr int zero_point = needs_sums ? 1 : QuadDot<Stored::dot_bits>::zero_point;
    constexpr int unpacked = QuadDot<8>::zero_point;
    if constexpr (Stored::paired) {
      fill_pairs<before_last, Stored::span>(x.whole.values, rows, memory.starts);
      fill_pairs<left, Last::span>(x.last.values, rows, memory.last);
    } else if (!unpacks(rows) || keeps_integers<typename Panels::Block>) {
      fill_starts<zero_point, before_last, Stored::span>(x.whole.values, rows, memory.starts);
      fill_starts<zero_point, left, Last::span, Last::spans>(x.last.values, rows, memory.last);
    } else {
      constexpr int span = by_span ? Stored::span : block, rest = by_span ? Last::span : In::last;
      fill_starts<unpacked, before_last, span>(x.whole.values, rows, memory.starts);
      fill_starts<unpacked, left, rest, last_starts>(x.last.values, rows, memory.last);
    }
  }

  // Starts of spans of the first `count` k, and of all that are stored; the last of them may have
  // fewer.
  template <int zero_point, int count, int span, int spans = 0>
  static void fill_starts(const std::int8_t* values, int rows, int* starts) {
    constexpr int whole = count / span, some = whole + (count % span > 0);
    if (zero_point == 0) return;
    for (int plane = 0; plane < planes * rows; ++plane, values += Inputs) {
      for (int s = 0; s < whole; ++s) *starts++ = -zero_point * sum_values<span>(values + s * span);
      if constexpr (count % span > 0)
        *starts++ = -zero_point * sum_values<count % span>(values + whole * span);
      for (int s = some; s < spans; ++s) *starts++ = 0;
    }
  }

  // The same of two spans in the halves of one, without a zero point.
  template <int count, int span>
  static void fill_pairs(const std::int8_t* values, int rows, int* starts) {
    const auto start = [&](int k) {
      int sum = k + span <= count ? sum_values<span>(values + k) : 0;
      if (k + span > count)
        for (; k < count; ++k) sum += values[k];
      return -sum;
    };
    for (int plane = 0; plane < planes * rows; ++plane, values += Inputs)
      for (int k = 0; k < count; k += 2 * span) *starts++ = word_pair(start(k), start(k + span));
  }

  // sums[rows] = x times one panel; `next` is the panel that follows, which tiles begin to read.
  template <class Around>
  [[gnu::noinline]] static void product(Team team, const Operands& x, int rows,
                                        const std::uint8_t* panel, const std::uint8_t* next,
                                        Own& own, Rows<float> sums, const Around& around) {
    if constexpr (tiled) {
      if (takes_tiles(rows)) return tiled_product(x, rows, panel, next, own, sums, around);
    }
    if (rows <= tile_rows<planes>)
      stream_product(x, rows, panel, next, sums, around);
    else if (!unpacks(rows))
      shared_product(team, x, rows, panel, next, sums, around);
    else if constexpr (unpackable)
      unpacked_product(team, x, rows, panel, next, own.unpacked, sums, around);
  }

 private:
  template <class Sink>
  struct Memory {
    UnitMemory<Sink, block_rows> unit;
    Own own;
  };

  // Each block fetches one that follows, in this panel or the next.
  template <class Around>
  static void stream_product(const Operands& x, int rows, const std::uint8_t* panel,
                             const std::uint8_t* next, Rows<float> sums, const Around& around) {
    constexpr int bytes = Panels::Block::bytes, ahead = (quads_ahead<bits> - 1) / bytes + 1;
    constexpr int turn = ahead < In::count ? In::count - ahead : 0;
    const Stored blocks{panel};
    const FetchStream here{ahead * bytes}, after{next - blocks.packed(turn).data};
    const Range parts[] = {{0, turn}, {turn, In::whole}};
    with_rows<tile_rows<planes>>(rows, [&](auto height) {
      for (const Range range : parts)
        quantized_tile<height.value>(x.whole, blocks, range, range.begin < turn ? here : after, sums,
                                     range.begin == 0 ? Start::zero : Start::resume);
      if constexpr (In::any_left)
        quantized_tile<height.value>(x.last, last_of(panel), {0, 1}, after, sums, after_whole);
    });
    around.after(0, rows);
  }

  template <class Around>
  static void shared_product(Team team, const Operands& x, int rows, const std::uint8_t* panel,
                             const std::uint8_t* next, Rows<float> sums, const Around& around) {
    if constexpr (In::whole > 0)
      share_blocks(team, x.whole, rows, Stored{panel}, {0, In::whole}, {true, !In::any_left}, next,
                   Panels::whole_bytes, sums, around);
    if constexpr (In::any_left)
      share_blocks(team, x.last, rows, last_of(panel), {0, 1}, {In::whole == 0, true},
                   next + Panels::whole_bytes, Panels::Last::bytes, sums, around);
  }

  template <class Around>
  static void unpacked_product(Team team, const Operands& x, int rows, const std::uint8_t* panel,
                               const std::uint8_t* next, std::uint8_t* unpacked,
                               Rows<float> sums, const Around& around) {
    const WholeRows<whole_starts> whole{x.whole.values, x.whole.scales, x.whole.starts};
    const Stored blocks{panel};
    for (int begin = 0; begin < In::whole; begin += chunk) {
      const Range range{begin, begin + chunk < In::whole ? begin + chunk : In::whole};
      const UnpackedBlocks<Stored, block> chunked{blocks, unpacked, begin};
      for (int index = range.begin; index < range.end; ++index)
        unpack(chunked, index, unpacked);
      const auto* following = range.end < In::count ? blocks.packed(range.end).data : next;
      share_blocks(team, whole, rows, chunked, range, {begin == 0, range.end == In::count},
                   following, (range.end - range.begin) * Panels::Block::bytes, sums, around);
    }
    if constexpr (In::any_left) {
      const LastRows<last_starts> rest{x.last.values, x.last.scales, x.last.starts};
      const UnpackedBlocks<Last, In::last> last{last_of(panel), unpacked, 0};
      unpack(last, 0, unpacked);
      share_blocks(team, rest, rows, last, {0, 1}, {In::whole == 0, true}, next,
                   Panels::Last::bytes, sums, around);
    }
  }

  template <class Around>
  static void tiled_product(const Operands& x, int rows, const std::uint8_t* panel,
                            const std::uint8_t* next, Own& own, Rows<float> sums,
                            const Around& around) {
    LineFetch fetch(next);
    const auto zero_sums = [&](int row, int height) {
      around.before(row, height);
      for (const int end = row + height; row < end; ++row)
        for (int v = 0; v < quantized_vectors; ++v) store(sums[row] + v * lanes, zero());
    };
    if constexpr (In::whole > 0) {
      const WholeRows<1> all{x.whole.values, x.whole.scales, x.whole.starts};
      amx_blocks<block>(TiledRows(all, planes * rows, own.rest), Stored{panel}, In::whole,
                        In::any_left ? nullptr : next, fetch, own.amx, sums, zero_sums);
    }
    if constexpr (In::any_left) {
      const LastRows<1> all{x.last.values, x.last.scales, x.last.starts};
      const TiledRows<LastRows<1>> tiles(all, planes * rows, own.rest + In::whole * block);
      amx_blocks<In::last>(tiles, last_of(panel), 1, In::whole > 0 ? nullptr : next, fetch, own.amx,
                           sums, [&](int row, int height) {
                             if (In::whole == 0) zero_sums(row, height);
                           });
    }
    around.after(0, rows);
  }

  static Last last_of(const std::uint8_t* panel) { return {panel + Panels::whole_bytes}; }
};

template <int bits, int group, int block, int Inputs, int Outputs, class X, class Out>
[[gnu::noinline, gnu::noipa]]
void quantized_linear(Slice slice, Rows<const X> x, Rows<const float> scales,
                      const std::uint8_t* weight, const float* bias, Rows<const float> residual,
                      Rows<Out> out) {
  const Store<quantized_columns, Outputs, Out> sink{{}, residual, out};
  QuantizedLinear<bits, group, block, Inputs, Outputs, X>{{weight}}.run(slice, x, scales, bias,
                                                                       sink);
}

// See linear_soft_cap.
template <int bits, int group, int block, int Inputs, int Outputs, class X, class Out>
[[gnu::noinline, gnu::noipa]]
void quantized_linear_soft_cap(Slice slice, Rows<const X> x, Rows<const float> scales,
                               const std::uint8_t* weight, const float* bias, float cap,
                               Rows<Out> out) {
  const StoreCapped<quantized_columns, Outputs, Out> sink{{}, cap, out};
  QuantizedLinear<bits, group, block, Inputs, Outputs, X>{{weight}}.run(slice, x, scales, bias,
                                                                       sink);
}

// See activated_linear. A unit is 64 columns of each half, if there are two: two panels.
template <class Kind, int bits, int group, int block, int Inputs, int Outputs, class X, class Out>
[[gnu::noinline, gnu::noipa]]
void quantized_activated_linear(Slice slice, Rows<const X> x, Rows<const float> scales,
                                const std::uint8_t* weight,
                                const float* bias, Rows<Out> out) {
  const StoreActivated<Kind::parts * quantized_columns, Outputs, Kind, Out> sink{{}, out};
  QuantizedLinear<bits, group, block, Inputs, Outputs, X>{{weight}}.run(slice, x, scales, bias,
                                                                       sink);
}

// The same, rounded to integers. Units are just large enough to have whole groups of results.
template <class Kind, int result_group, int bits, int group, int block, int Inputs, int Outputs,
          class X, class V>
[[gnu::noinline, gnu::noipa]]
void quantized_activated_linear_quantize(Slice slice, Rows<const X> x, Rows<const float> scales,
                                         const std::uint8_t* weight, const float* bias,
                                         Rows<V> values, Rows<float> value_scales) {
  constexpr int least = 2 * quantized_columns;
  constexpr int columns = result_group > least ? result_group : least;
  const QuantizeActivated<columns, Outputs, Kind, result_group, V> sink{{}, values, value_scales};
  QuantizedLinear<bits, group, block, Inputs, Outputs, X>{{weight}}.run(slice, x, scales, bias,
                                                                       sink);
}

}  // namespace ingot
