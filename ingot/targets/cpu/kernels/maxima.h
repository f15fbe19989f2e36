// What threads keep of the logits that they have just computed, for the sampler.
#pragma once

#include <algorithm>

#include "team.h"
#include "vocabulary.h"

namespace ingot {

// More rows of logits than these leave the caches before the last of them is computed. They are
// also enough to let all threads draw.
inline constexpr int known_rows = 3;

// The first rows of a step's logits, and the maxima of their blocks. Infinity means unknown.
struct KnownRows {
  const float* logits = nullptr;
  int rows = 0, vocabulary = 0;
  const float* maxima = nullptr;

  // The maxima of the row of logits that begins there; null for any other address.
  const float* of(const float* row) const {
    for (int r = 0; r < rows; ++r)
      if (row == logits + static_cast<std::ptrdiff_t>(r) * vocabulary)
        return maxima + r * num_blocks(vocabulary);
    return nullptr;
  }
};

// For a head whose panels have so many columns: each thread looks at the blocks of its own columns.
// A block that it shares with another thread stays unknown.
template <int Vocabulary, int columns>
[[gnu::noinline, gnu::noipa]]
void head_maxima(Team team, int rows, const float* logits, float* maxima) {
  constexpr int blocks = num_blocks(Vocabulary);
  const Range panels = share((Vocabulary + columns - 1) / columns, team);
  const int begin = panels.begin * columns;
  const int end = std::min(panels.end * columns, Vocabulary);
  for (int row = 0; row < rows && rows <= known_rows; ++row)
    for (int b = num_blocks(begin); b * block_tokens < end; ++b) {
      const Span span = block_of(logits + static_cast<std::ptrdiff_t>(row) * Vocabulary,
                                 Vocabulary, b);
      maxima[row * blocks + b] = span.end <= end ? largest(span) : HUGE_VALF;
    }
}

}  // namespace ingot
