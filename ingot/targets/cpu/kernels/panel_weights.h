// The weights of a panel as register tiles read them, and what tiles fetch meanwhile.
//
// A panel holds [ceil(K / depth)][width][depth]. Where no instruction multiplies pairs of bfloat16,
// weights and rows become float32; see `Wide`.
#pragma once

#include "next_attention.h"
#include "team.h"
#include "tile.h"

namespace ingot {

template <class T, int Width>
inline constexpr std::ptrdiff_t step_size = Width * Dot<T>::depth;

// Weights from a step of a panel on.
template <class T, int Width>
struct PanelSteps {
  const T* panel;

  typename Dot<T>::Columns load(int vector, int step) const {
    return Dot<T>::columns(panel + place(vector, step));
  }

 protected:
  static std::ptrdiff_t place(int vector, int step) {
    return step * step_size<T, Width> + vector * lanes * Dot<T>::depth;
  }
};

// Weights that are read once.
template <class T, int Width>
struct StreamedWeights : PanelSteps<T, Width> {
  const T* fetched;  // at step 0

  void fetch(int vector, int step) const {
    prefetch_stream(fetched + this->place(vector, step));
  }
};

// Weights that several tiles of rows share. Each tile fetches its part of what comes next, so that
// memory works all the time and not only during the first tile. It does so at every step, which is
// too often for many tiles.
template <class T, int Width>
struct SharedWeights : PanelSteps<T, Width> {
  const T* next;       // what this tile fetches at step 0
  std::uint32_t pace;  // steps fetched per step of the tile, in units of 2^-16

  void fetch(int vector, int step) const {
    const std::uint32_t ahead = static_cast<std::uint32_t>(step) * pace >> 16;
    prefetch(next + this->place(vector, static_cast<int>(ahead)));
  }
};

// Lines that register tiles fetch one after the other, each its part, between steps; and with each
// of them one of the next attention.
class SpreadFetch {
 public:
  SpreadFetch(const void* from, std::ptrdiff_t bytes, int tiles, NextAttention* attention)
      : next_(static_cast<const char*>(from)), left_(static_cast<int>(bytes / 64)), tiles_(tiles),
        attention_(attention) {}

  // Calls body(step) for the steps of a tile.
  template <class Body>
  [[gnu::always_inline]] void during(int begin, int end, Body body) {
    const int lines = tiles_ > 0 ? (left_ + tiles_ - 1) / tiles_ : 0;
    const int pace = lines > 0 && lines < end - begin ? (end - begin) / lines : 1;
    left_ -= lines, --tiles_;
    const char* next = next_;
    next_ += lines * 64;
    Lines later;
    const auto fetch = [&](int line) {
      if (line % taken == 0) later = take_lines(attention_, taken);
      prefetch(next + line * 64);
      prefetch(later.take());
    };
    int line = 0;
    if (lines <= taken) {
      while (line < lines) fetch(line++);
      for (int step = begin; step < end; ++step) body(step);
      return;
    }
    for (int step = begin; step < end;) {
      if (line < lines) fetch(line++);
      const int stop = end - step < pace ? end : step + pace;
      for (; step < stop; ++step) body(step);
    }
    while (line < lines) fetch(line++);
  }

 private:
  static constexpr int taken = 8;  // lines at once

  const char* next_;
  int left_, tiles_;
  NextAttention* attention_;
};

// The same weights for many tiles.
template <class T, int Width>
struct BlockWeights : PanelSteps<T, Width> {
  SpreadFetch& next;

  static void fetch(int, int) {}
};
template <class T, int Width, class Body>
[[gnu::always_inline]] inline void for_steps(const BlockWeights<T, Width>& source, int begin,
                                             int end, Body body) {
  source.next.during(begin, end, body);
}

// Pairs that become float32 on the way.
template <int Width>
struct SplitWeights {
  const bf16* block;
  SpreadFetch& next;

  vf load(int vector, int step) const {
    const bf16* from = block + step / 2 * step_size<bf16, Width> + vector * lanes * 2;
    return split_pairs(from, step % 2);
  }
  static void fetch(int, int) {}
};
template <int Width, class Body>
[[gnu::always_inline]] inline void for_steps(const SplitWeights<Width>& source, int begin,
                                             int end, Body body) {
  source.next.during(begin / 2, end / 2, [&](int pair) __attribute__((always_inline)) {
    body(2 * pair);
    body(2 * pair + 1);
  });
}

inline constexpr int widened_depth = 128;  // k of a block of float32: it stays in the L1 cache

// Where weights of a block, and a tile of rows, become float32.
template <class T>
struct Widened {};
template <>
struct Widened<bf16> {
  static constexpr int columns = 64;  // the most of a panel
  alignas(64) float weights[widens<bf16> ? widened_depth * columns : 1];
  alignas(64) float rows[widens<bf16> ? max_tile_rows<float> * widened_depth : 1];

  template <int Width>
  void widen_weights(const bf16* from, int steps) {
    static_assert(Width <= columns);
    for (int i = 0; i < steps * Width; i += lanes) {
      float* to = weights + i / Width * 2 * Width + i % Width;
      store(to, split_pairs(from + 2 * i, 0));
      store(to + Width, split_pairs(from + 2 * i, 1));
    }
  }

  Rows<const float> widen_rows(Rows<const bf16> x, int count, int k) {
    for (int r = 0; r < count; ++r) {
      const bf16* from = x[r];
      float* to = rows + r * widened_depth;
      int i = 0;
      for (; i + lanes <= k; i += lanes) store(to + i, load(from + i));
      if (i < k) store(to + i, load(from + i, k - i), k - i);
    }
    return {rows, widened_depth};
  }
};

}  // namespace ingot
