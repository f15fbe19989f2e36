// 16 rows of 16 words, turned into columns.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace ingot {

// Word i of row j becomes word j of row i. Rows of either are so many bytes apart.
inline void turn(const void* from, std::ptrdiff_t from_stride, void* to, std::ptrdiff_t to_stride) {
  __m512i rows[16], twos[16];
  for (int i = 0; i < 16; ++i)
    rows[i] = _mm512_loadu_si512(static_cast<const char*>(from) + i * from_stride);
  for (int i = 0; i < 16; i += 2) {
    twos[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    twos[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)  // fours of rows: words 0, 1, 2, 3 of each 128 bits
    for (int j = 0; j < 2; ++j) {
      rows[i + 2 * j] = _mm512_unpacklo_epi64(twos[i + j], twos[i + 2 + j]);
      rows[i + 2 * j + 1] = _mm512_unpackhi_epi64(twos[i + j], twos[i + 2 + j]);
    }
  for (int word = 0; word < 4; ++word) {
    const __m512i low[] = {_mm512_shuffle_i32x4(rows[word], rows[4 + word], 0x88),
                           _mm512_shuffle_i32x4(rows[word], rows[4 + word], 0xdd)};
    const __m512i high[] = {_mm512_shuffle_i32x4(rows[8 + word], rows[12 + word], 0x88),
                            _mm512_shuffle_i32x4(rows[8 + word], rows[12 + word], 0xdd)};
    for (int half = 0; half < 2; ++half)
      for (int quarter = 0; quarter < 2; ++quarter) {
        const __m512i column = quarter == 0 ? _mm512_shuffle_i32x4(low[half], high[half], 0x88)
                                            : _mm512_shuffle_i32x4(low[half], high[half], 0xdd);
        const int place = word + 4 * half + 8 * quarter;
        _mm512_storeu_si512(static_cast<char*>(to) + place * to_stride, column);
      }
  }
}

}  // namespace ingot
