// How the threads of a step divide its work: statically, so that a thread streams its own part
// of the weights, and in whole output elements, so that no sum crosses threads.
#pragma once

#include <cstddef>

namespace ingot {

inline constexpr std::size_t scratch_bytes = 256 << 10;  // a quarter of the L2 cache

struct Team {
  int rank, size;
  void* scratch;  // this thread's own, 64-byte aligned

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

// Rows of a matrix, `stride` elements apart.
template <class T>
struct Rows {
  T* data;
  std::ptrdiff_t stride;

  T* operator[](int row) const { return data + row * stride; }
};

}  // namespace ingot
