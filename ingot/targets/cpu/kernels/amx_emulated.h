// AMX without AMX, to test what is built for it on other machines and under sanitizers. See amx.h
// for the contract.
#pragma once

#include <cstring>

namespace ingot::amx {

struct Registers {
  Shape shape;
  std::uint32_t words[tiles][most_rows][columns];
};
inline thread_local Registers registers;

inline float as_float(std::uint32_t bits) {
  if ((bits & 0x7f800000) == 0) bits &= 0x80000000;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::uint32_t as_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits;
}
inline float even(std::uint32_t pair) { return as_float(pair << 16); }
inline float odd(std::uint32_t pair) { return as_float(pair & 0xffff0000); }

inline bool allowed() { return true; }

inline void configure(const Shape& shape) {
  registers = {};
  registers.shape = shape;
}

template <int tile>
inline void zero() {
  std::memset(registers.words[tile], 0, sizeof registers.words[tile]);
}

template <int tile>
inline void load(const void* from, std::ptrdiff_t stride) {
  zero<tile>();
  for (int r = 0; r < registers.shape.rows[tile]; ++r)
    std::memcpy(registers.words[tile][r], static_cast<const char*>(from) + r * stride,
                registers.shape.row_bytes[tile]);
}

template <int tile>
inline void load_once(const void* from, std::ptrdiff_t stride) {
  load<tile>(from, stride);
}

template <int tile>
inline void store(void* to, std::ptrdiff_t stride) {
  for (int r = 0; r < registers.shape.rows[tile]; ++r)
    std::memcpy(static_cast<char*>(to) + r * stride, registers.words[tile][r],
                registers.shape.row_bytes[tile]);
}

template <int sums, int rows, int columns>
inline void multiply() {
  auto& words = registers.words;
  for (int r = 0; r < registers.shape.rows[rows]; ++r)
    for (int c = 0; c < amx::columns; ++c) {
      float evens = 0, odds = 0;
      for (int k = 0; k < registers.shape.row_bytes[rows] / 4; ++k) {
        const std::uint32_t x = words[rows][r][k], w = words[columns][k][c];
        evens = as_float(as_bits(__builtin_fmaf(even(x), even(w), evens)));
        odds = as_float(as_bits(__builtin_fmaf(odd(x), odd(w), odds)));
      }
      const float sum = as_float(as_bits(evens + odds));
      words[sums][r][c] = as_bits(as_float(words[sums][r][c]) + sum);
    }
}

template <int sums, int rows, int columns>
inline void multiply_bytes() {
  auto& words = registers.words;
  const auto byte = [](std::uint32_t quad, int i) {
    return static_cast<std::int8_t>(quad >> 8 * i);
  };
  for (int r = 0; r < registers.shape.rows[rows]; ++r)
    for (int c = 0; c < amx::columns; ++c)
      for (int k = 0; k < registers.shape.row_bytes[rows] / 4; ++k) {
        const std::uint32_t x = words[rows][r][k], w = words[columns][k][c];
        for (int i = 0; i < 4; ++i)
          words[sums][r][c] += static_cast<std::uint32_t>(byte(x, i) * byte(w, i));
      }
}

inline void release() { registers = {}; }

}  // namespace ingot::amx
