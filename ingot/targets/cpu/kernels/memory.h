// The buffers of a model, as its step sees them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "team.h"

namespace ingot {

// An arena for every thread but the first. Steps of few rows touch their beginnings only, so nearly
// all of it is an address and no memory. Where not even that can be had, no step has few rows.
struct OtherArenas {
  char* data;
  std::ptrdiff_t each;
  std::size_t bytes;

  static OtherArenas reserve(int count, std::ptrdiff_t each) {
    const std::size_t bytes = static_cast<std::size_t>(count) * static_cast<std::size_t>(each);
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* data = bytes > 0 ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) : nullptr;
    return {data == MAP_FAILED ? nullptr : static_cast<char*>(data), each, bytes};
  }

  bool exist() const { return data != nullptr || bytes == 0; }
  char* of(int rank) const { return data + (rank - 1) * each; }

  void free() const {
    if (data != nullptr) munmap(data, bytes);
  }
};

// What a step reads and writes. The generated code names buffers by number and offset.
struct Memory {
  const void* const* weights;
  void* const* caches;
  char* arena;
  OtherArenas others;
  float* head_maxima;

  // Whether every thread of a team can have an arena of its own.
  bool suffices(Team team) const { return team.size == 1 || others.exist(); }

  // The same with the thread's own arena. That of the first thread is the shared one.
  Memory of(Team team) const {
    Memory own = *this;
    if (team.rank > 0) own.arena = others.of(team.rank);
    return own;
  }

  template <class T>
  const T* weight(std::int64_t index) const {
    return static_cast<const T*>(weights[index]);
  }
  template <class T>
  T* cache(std::int64_t index) const {
    return static_cast<T*>(caches[index]);
  }
  // Rows of a temporary; the offset is in bytes, the stride in elements.
  template <class T>
  Rows<T> rows(std::ptrdiff_t offset, std::ptrdiff_t stride) const {
    return {reinterpret_cast<T*>(arena + offset), stride};
  }
};

}  // namespace ingot
