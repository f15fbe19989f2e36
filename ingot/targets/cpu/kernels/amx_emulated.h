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

// Products read and write registers alone, so no sanitizer has to look, and what is built for one
// without optimisation takes no minutes. A row of sixteen numbers is what their loops are over
// innermost, so that compilers vectorize them.
#pragma GCC push_options
#pragma GCC optimize("O3")
#define INGOT_OF_REGISTERS [[gnu::no_sanitize("address", "thread", "undefined")]] inline

INGOT_OF_REGISTERS std::uint32_t flushed(std::uint32_t bits) {
  return bits & ((bits & 0x7f800000) == 0 ? 0x80000000u : 0xffffffffu);
}
INGOT_OF_REGISTERS float as_float(std::uint32_t bits) {
  bits = flushed(bits);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
INGOT_OF_REGISTERS std::uint32_t as_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return flushed(bits);
}
INGOT_OF_REGISTERS float even(std::uint32_t pair) { return as_float(pair << 16); }
INGOT_OF_REGISTERS float odd(std::uint32_t pair) { return as_float(pair & 0xffff0000); }

template <int sums, int rows, int columns>
INGOT_OF_REGISTERS void multiply() {
  auto& words = registers.words;
  for (int r = 0; r < registers.shape.rows[rows]; ++r) {
    float evens[amx::columns] = {}, odds[amx::columns] = {};
    for (int k = 0; k < registers.shape.row_bytes[rows] / 4; ++k) {
      const float x = even(words[rows][r][k]), y = odd(words[rows][r][k]);
      for (int c = 0; c < amx::columns; ++c) {
        const std::uint32_t w = words[columns][k][c];
        evens[c] = as_float(as_bits(__builtin_fmaf(x, even(w), evens[c])));
        odds[c] = as_float(as_bits(__builtin_fmaf(y, odd(w), odds[c])));
      }
    }
    for (int c = 0; c < amx::columns; ++c) {
      const float sum = as_float(as_bits(evens[c] + odds[c]));
      words[sums][r][c] = as_bits(as_float(words[sums][r][c]) + sum);
    }
  }
}

template <int sums, int rows, int columns>
INGOT_OF_REGISTERS void multiply_bytes() {
  auto& words = registers.words;
  for (int r = 0; r < registers.shape.rows[rows]; ++r)
    for (int k = 0; k < registers.shape.row_bytes[rows] / 4; ++k)
      for (int i = 0; i < 4; ++i) {
        const int x = static_cast<std::int8_t>(words[rows][r][k] >> 8 * i);
        for (int c = 0; c < amx::columns; ++c) {
          const int w = static_cast<std::int8_t>(words[columns][k][c] >> 8 * i);
          words[sums][r][c] += static_cast<std::uint32_t>(x * w);
        }
      }
}

#undef INGOT_OF_REGISTERS
#pragma GCC pop_options

inline void release() { registers = {}; }

}  // namespace ingot::amx
