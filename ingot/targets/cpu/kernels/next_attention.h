// What attention reads next, for products to fetch.
//
// Products of many rows leave memory idle, and the attention behind them waits for memory. So while
// a thread multiplies, it fetches keys and values of its share of the heads, page by page. They
// pass through its own cache into the one that all cores share. Fetches change no result. Prompts
// are left out: arithmetic bounds their attention.
#pragma once

#include "sequences.h"
#include "team.h"

namespace ingot {

// Some lines side by side; or, of which a fetch does nothing, one that is in the cache already.
struct Lines {
  alignas(64) static constexpr char cached[64] = {};
  const char* next = cached;
  std::ptrdiff_t stride = 0;

  [[gnu::always_inline]] const char* take() {
    const char* line = next;
    next += stride;
    return line;
  }
};

class NextAttention {
 public:
  static constexpr int most_queries = 8;  // of a sequence that waits for memory

  // Where the pages of a cache lie. Of each a thread reads a run of keys, and one of values.
  struct Pages {
    const char *keys, *values;  // the runs of the first page
    std::ptrdiff_t page_bytes, run_bytes;
    int page_size;  // in tokens
  };

  // None.
  NextAttention() = default;
  NextAttention(Pages pages, int window, Sequences sequences)
      : left_(pages.run_bytes > 0 ? 0 : 1), pages_(pages), window_(window), sequences_(sequences) {
    begin_sequence();
  }

  // So many lines, if there are any more. After the last of a run they go on with its neighbours.
  [[gnu::always_inline]] Lines take(int lines) {
    if (left_ <= 0) begin_run();
    const Lines found = next_;
    next_.next += lines * next_.stride;
    left_ -= lines * next_.stride;
    return found;
  }

 private:
  // Goes to the values of a page whose keys came last, or to the keys of the next page.
  [[gnu::noinline]] void begin_run() {
    while (!at_values_ && page_ >= pages_end_) {
      if (++sequence_ >= sequences_.count) {
        *this = {};
        return;
      }
      begin_sequence();
    }
    const int* table = sequences_.page_table + sequence_ * sequences_.page_table_stride;
    next_ = {(at_values_ ? pages_.values : pages_.keys) + table[page_] * pages_.page_bytes, 64};
    left_ = pages_.run_bytes;
    if (at_values_) ++page_;
    at_values_ = !at_values_;
  }

  void begin_sequence() {
    page_ = pages_end_ = 0;
    if (sequence_ >= sequences_.count) return;
    const int queries = sequences_.num_queries(sequence_);
    if (queries == 0 || queries > most_queries) return;
    const int first = sequences_.position(sequence_, 0);
    const int last = sequences_.position(sequence_, queries - 1);
    page_ = window_ > 0 && first >= window_ ? (first - window_ + 1) / pages_.page_size : 0;
    pages_end_ = last / pages_.page_size + 1;
  }

  Lines next_;
  std::ptrdiff_t left_ = 1;
  Pages pages_{};
  int window_ = 0, sequence_ = 0, page_ = 0, pages_end_ = 0;
  bool at_values_ = false;
  Sequences sequences_{};
};

// What tiles of rows fetch for while they read weights of so many bits. Null if they are so few that
// weights alone keep memory busy.
inline NextAttention* next_attention(Team team, int tiles, int bits) {
  constexpr int least_tiles_a_byte = 3;
  return tiles * 8 >= least_tiles_a_byte * bits ? team.next_attention : nullptr;
}
[[gnu::always_inline]] inline Lines take_lines(NextAttention* attention, int count) {
  return attention != nullptr ? attention->take(count) : Lines{};
}

}  // namespace ingot
