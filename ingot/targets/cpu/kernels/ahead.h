// What attention reads next, for products to fetch.
//
// Products of many rows leave memory idle, and the attention behind them waits for memory. So while
// a thread multiplies, it fetches the keys and values that its heads will read, page by page. They
// pass through its own cache into the one that all cores share. Fetches change no result. Prompts
// are left out: arithmetic bounds their attention.
#pragma once

#include "cache.h"
#include "latent_cache.h"
#include "sequences.h"

namespace ingot {

// Lines that a product fetches one by one.
struct LaterLines {
  const char* next;
  std::ptrdiff_t stride;

  [[gnu::always_inline]] void fetch() {
    prefetch(next);
    next += stride;
  }
};

class Ahead {
 public:
  static constexpr int most_queries = 8;  // of a sequence that waits for memory

  // The keys and values that a thread's heads see in a step.
  template <class S, int KvHeads, int PageSize, int D>
  void look(const Cache<S, KvHeads, PageSize, D>& cache, int window, Sequences sequences,
            Team team) {
    const Range heads = share(KvHeads, team);
    const auto bytes = [](std::ptrdiff_t token) { return token * D * sizeof(S); };
    const std::ptrdiff_t first = bytes(cache.token(0, heads.begin, 0));
    *this = {};
    keys_ = reinterpret_cast<const char*>(cache.keys) + first;
    values_ = reinterpret_cast<const char*>(cache.values) + first;
    page_bytes_ = bytes(cache.token(1, 0, 0));
    run_bytes_ = bytes(cache.token(0, heads.end - heads.begin, 0));
    page_size_ = PageSize;
    window_ = window;
    sequences_ = sequences;
    begin_sequence();
  }
  // Latent rows are read by so much arithmetic that they need no help.
  template <class Latent>
  void look(const Latent&, int, Sequences, Team) {
    *this = {};
  }

  // The next lines, as many as lie side by side, or the same one again and again where there are no
  // more. After the last of a run they go on with its neighbours.
  LaterLines take(int lines) {
    if (left_ <= 0 && !next_run()) return {reinterpret_cast<const char*>(this), 0};
    const LaterLines found{next_, 64};
    next_ += lines * 64;
    left_ -= lines * 64;
    return found;
  }

 private:
  // Goes to the values of a page whose keys came last, or to the keys of the next page.
  [[gnu::noinline]] bool next_run() {
    while (!at_values_ && page_ >= pages_end_) {
      if (++sequence_ >= sequences_.count) return false;
      begin_sequence();
    }
    const int* pages = sequences_.page_table + sequence_ * sequences_.page_table_stride;
    next_ = (at_values_ ? values_ : keys_) + pages[page_] * page_bytes_;
    left_ = run_bytes_;
    if (at_values_) ++page_;
    at_values_ = !at_values_;
    return true;
  }

  void begin_sequence() {
    page_ = pages_end_ = 0;
    if (sequence_ >= sequences_.count) return;
    const int queries = sequences_.num_queries(sequence_);
    if (queries == 0 || queries > most_queries) return;
    const int first = sequences_.position(sequence_, 0);
    const int last = sequences_.position(sequence_, queries - 1);
    page_ = window_ > 0 && first >= window_ ? (first - window_ + 1) / page_size_ : 0;
    pages_end_ = last / page_size_ + 1;
  }

  const char *keys_ = nullptr, *values_ = nullptr, *next_ = nullptr;
  std::ptrdiff_t page_bytes_ = 0, run_bytes_ = 0, left_ = 0;
  Sequences sequences_{};
  int page_size_ = 1, window_ = 0, sequence_ = 0, page_ = 0, pages_end_ = 0;
  bool at_values_ = false;
};

// Tells a thread of the attention that comes next.
template <int Window, class Cache>
[[gnu::noinline, gnu::noipa]]
void look_ahead(Team team, Cache cache, Sequences sequences) {
  team.ahead->look(cache, Window, sequences, team);
}
// Tells it that there is none.
inline void look_away(Team team) { *team.ahead = {}; }

// What a product fetches while it computes a tile; for a product that nobody told of an attention,
// the same line again and again.
inline LaterLines lines_ahead(Ahead* ahead, int count) {
  static constexpr char none[64] = {};
  return ahead != nullptr ? ahead->take(count) : LaterLines{none, 0};
}

}  // namespace ingot
