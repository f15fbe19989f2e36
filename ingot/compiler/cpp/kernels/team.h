// How the threads of a step divide its work: statically, so that a thread streams its own part
// of the weights, and in whole output elements, so that no sum crosses threads.
#pragma once

#include <cstddef>

namespace ingot {

inline constexpr std::size_t scratch_bytes = 256 << 10;  // a quarter of the L2 cache

struct Team {
  int rank, size;
  void* scratch;  // this thread's own, 64-byte aligned

  // The thread as if there were no other.
  Team alone() const { return {0, 1, scratch}; }

  // Working memory of a kernel until it returns. Not the stack: it may be small, and GCC 12 at
  // -O3 takes stores through a pointer that it derived beside a local array for local ones.
  template <class T>
  T& workspace() const {
    static_assert(sizeof(T) <= scratch_bytes, "a kernel needs more scratch than a thread has");
    return *static_cast<T*>(scratch);
  }
};

struct Range {
  int begin, end;
};

// The part of 0..count that belongs to a thread: contiguous, and sizes differ by at most one.
inline Range share(int count, Team team) {
  const int each = count / team.size, more = count % team.size;
  const int begin = team.rank * each + (team.rank < more ? team.rank : more);
  return {begin, begin + each + (team.rank < more ? 1 : 0)};
}

// Whether all threads have equally many heads: then head h is that of thread h % size, in whatever
// op deals heads.
inline bool even_heads(int heads, Team team) { return heads % team.size == 0; }

// The rows of one thread in blocks that its cache holds, each a team of its own to `share`.
class RowBlocks {
 public:
  RowBlocks(Team team, int count) : team_(team), count_(count) {}

  class Iterator {
   public:
    Iterator(const RowBlocks& blocks, int index) : blocks_(blocks), index_(index) {}
    Team operator*() const {
      const Team& team = blocks_.team_;
      const int count = blocks_.count_;
      return {team.rank * count + index_, team.size * count, team.scratch};
    }
    void operator++() { ++index_; }
    bool operator!=(const Iterator& other) const { return index_ != other.index_; }

   private:
    const RowBlocks& blocks_;
    int index_;
  };

  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, count_}; }

 private:
  Team team_;
  int count_;
};

inline RowBlocks row_blocks(int rows, Team team) {
  constexpr int block_rows = 8;
  const int count = (rows + team.size * block_rows - 1) / (team.size * block_rows);
  return {team, count > 1 ? count : 1};
}

// Rows of a matrix, `stride` elements apart.
template <class T>
struct Rows {
  T* data;
  std::ptrdiff_t stride;

  T* operator[](int row) const { return data + row * stride; }
};

}  // namespace ingot
