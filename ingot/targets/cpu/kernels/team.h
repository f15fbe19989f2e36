// How the threads of a step divide its work; see docs/cpu.md. The division is static, so that a
// thread streams its own part of the weights. It is by whole output elements, so that no sum
// crosses threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ingot {

inline constexpr std::size_t scratch_bytes = 256 << 10;  // a quarter of the L2 cache
inline constexpr std::size_t all_scratch_bytes = 2 << 20;  // with what gathered rows need

// What threads of a team hand to one another within a kernel.
struct Shared {
  static constexpr int most_counters = 256;
  static constexpr std::size_t bytes = 8 << 20;  // of which little is ever touched

  std::atomic<int> counters[most_counters];  // all are 0 between kernels
  alignas(64) char memory[bytes];
};

class NextAttention;

struct Team {
  int rank, size;
  void* scratch;  // this thread's own, 64-byte aligned
  std::atomic<std::uint64_t>* tickets = nullptr;  // the team's; see tickets.h
  Shared* shared = nullptr;                       // the team's
  NextAttention* next_attention = nullptr;        // this thread's own

  // The thread as if there were no other.
  Team alone() const { return {0, 1, scratch, nullptr, nullptr, next_attention}; }

  // Working memory of a kernel until it returns. It is not on the stack: that may be small, and GCC
  // 12 at -O3 mistakes stores through a pointer that it derived beside a local array for local
  // ones.
  template <class T>
  T& workspace() const {
    static_assert(sizeof(T) <= scratch_bytes, "a kernel needs more scratch than a thread has");
    return *static_cast<T*>(scratch);
  }

  // The same for kernels that gather rows or hold many; of what is large they use little at a time.
  template <class T>
  T& large_workspace() const {
    static_assert(sizeof(T) <= all_scratch_bytes, "a kernel needs more scratch than a thread has");
    return *static_cast<T*>(scratch);
  }
};

struct Range {
  int begin, end;
};

// The part of 0..count that belongs to a thread. Parts are contiguous, and their sizes differ by at
// most one.
inline Range share(int count, Team team) {
  const int each = count / team.size, more = count % team.size;
  const int begin = team.rank * each + (team.rank < more ? team.rank : more);
  return {begin, begin + each + (team.rank < more ? 1 : 0)};
}

// Whether all threads have equally many heads. If so, each has its share() in every kernel that
// deals heads. A thread's heads lie side by side in a page. If heads of two threads alternated,
// hardware would fetch for each core what the other one reads.
inline bool even_heads(int heads, Team team) { return heads % team.size == 0; }

// Rows that a thread works on. Their columns or heads it divides with the team.
struct Slice {
  Team team;
  Range rows;
};

// Steps of few rows: each thread computes all rows of row-wise kernels for itself. Repeating so
// many rows takes about as long as a barrier.
inline bool has_few(int rows, Team team) { return rows * (team.size - 1) <= 64; }

// Steps of many rows: each thread takes rows of its own through all products. It then reads all
// weights, but mostly finds them in a shared cache, where another thread has just put them.
inline bool has_many(int rows, Team team) { return rows > 32 * team.size; }

// All rows: for products whose columns are divided.
inline Slice all_rows(int rows, Team team) { return {team, {0, rows}}; }

// The rows of one thread, with all their columns.
inline Slice own_rows(int rows, Team team) { return {team.alone(), share(rows, team)}; }

// The same in blocks that fit the thread's cache.
class RowBlocks {
 public:
  explicit RowBlocks(Slice all) : all_(all) {}

  class Iterator {
   public:
    Iterator(Slice left) : left_(left) {}
    Slice operator*() const { return {left_.team, {left_.rows.begin, next()}}; }
    void operator++() { left_.rows.begin = next(); }
    bool operator!=(const Iterator& end) const { return left_.rows.begin != end.left_.rows.begin; }

   private:
    static constexpr int block_rows = 8;
    int next() const {
      const int next = left_.rows.begin + block_rows;
      return next < left_.rows.end ? next : left_.rows.end;
    }

    Slice left_;
  };

  Iterator begin() const { return {all_}; }
  Iterator end() const { return {{all_.team, {all_.rows.end, all_.rows.end}}}; }

 private:
  Slice all_;
};

inline RowBlocks row_blocks(int rows, Team team) { return RowBlocks(own_rows(rows, team)); }

// Rows of a matrix, `stride` elements apart.
template <class T>
struct Rows {
  T* data;
  std::ptrdiff_t stride;

  T* operator[](int row) const { return data + row * stride; }
};

}  // namespace ingot
