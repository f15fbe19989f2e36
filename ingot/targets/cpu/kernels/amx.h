// Tiles of AMX: registers of up to 16 rows of 64 bytes. A product adds up 32 neighbouring k of 16
// columns at once, for up to 16 rows; of bytes it adds up 64.
//
//   available, has_bytes      whether the target has products of bfloat16, and of bytes; the other
//                             names are for where it has
//   allowed()                 asks the system for the registers; false if it refuses
//   configure(shape)          the rows of each tile; all tiles become empty
//   zero<tile>()
//   load<tile>(from, stride), store<tile>(to, stride)    rows are `stride` bytes apart
//   load_once<tile>(from, stride)    the same of what need not stay in the L1 cache
//   multiply<sums, rows, columns>()    sums += rows . columns, of bfloat16 into float32
//   multiply_bytes<sums, rows, columns>()    the same of signed bytes into int32
//   release()                 empties all tiles, so that the system has less to save
//
// Rows of columns hold pairs of neighbouring k, as panels do. A product sums even and odd k apart,
// in ascending order and fused, then adds the one to the other, and that to the sum it had.
// Subnormal numbers are zeros. (Intel 64 and IA-32 Software Developer's Manual, TDPBF16PS.)
// Rows of columns of bytes hold quads of k, as quantized panels do; their sums are exact.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ingot::amx {

inline constexpr int tiles = 8, most_rows = 16, columns = 16, depth = 32;
inline constexpr int byte_depth = 64;

// What `configure` reads: the layout is that of LDTILECFG.
struct alignas(64) Shape {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

bool allowed();
void configure(const Shape& shape);
template <int tile>
void zero();
template <int tile>
void load(const void* from, std::ptrdiff_t stride);
template <int tile>
void load_once(const void* from, std::ptrdiff_t stride);
template <int tile>
void store(void* to, std::ptrdiff_t stride);
template <int sums, int rows, int columns>
void multiply();
template <int sums, int rows, int columns>
void multiply_bytes();
void release();

#if defined(__AMX_BF16__)
inline constexpr bool available = true;
#else
inline constexpr bool available = false;
#endif
#if defined(__AMX_INT8__)
inline constexpr bool has_bytes = true;
#else
inline constexpr bool has_bytes = false;
#endif

}  // namespace ingot::amx

#if defined(INGOT_EMULATES_AMX)
#include "amx_emulated.h"
#elif defined(__AMX_BF16__) || defined(__AMX_INT8__)
#include "amx_native.h"
#else
namespace ingot::amx {
inline bool allowed() { return true; }
inline void release() {}
}  // namespace ingot::amx
#endif
