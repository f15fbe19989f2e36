// Sizes that decide how fast a target is, and no bit of what it computes. They come from the table
// in toolchain.py, which says what they are.
#pragma once

namespace ingot::tuned {

inline constexpr int core_cache = INGOT_CORE_CACHE;
inline constexpr int float_rows = INGOT_FLOAT_ROWS, bfloat16_rows = INGOT_BFLOAT16_ROWS;
inline constexpr int quad_rows = INGOT_QUAD_ROWS;
inline constexpr int float_ahead = INGOT_FLOAT_AHEAD;
inline constexpr int stream_cache = INGOT_STREAM_CACHE;
inline constexpr int int8_ahead = INGOT_INT8_AHEAD, int4_ahead = INGOT_INT4_AHEAD;
inline constexpr int unpacked_rows = INGOT_UNPACKED_ROWS;

}  // namespace ingot::tuned
