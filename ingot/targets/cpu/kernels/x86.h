// What the levels of x86 share and compilers cannot express: it is written in assembly.
#pragma once

#include "tuning.h"

namespace ingot {

// Prefetches into the L2 cache. It is volatile, because GCC may otherwise drop calls of a function
// that does nothing but prefetch.
inline void prefetch(const void* address) {
  asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(address)));
}

// The same for what is read once and soon, into the cache that the target reads it from.
inline void prefetch_stream(const void* address) {
  if constexpr (tuned::stream_cache == 1)
    asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(address)));
  else
    prefetch(address);
}

// Forces a sum to be complete here. Otherwise the compiler delays the additions of many steps, and
// the waiting products do not fit in registers.
template <class V>
inline V added_up(V sum) {
  asm("" : "+v"(sum));
  return sum;
}

// Keeps a vector in a register. Otherwise GCC loads it from memory once for each of two uses.
template <class V>
inline V loaded(V v) {
  asm("" : "+v"(v));
  return v;
}

}  // namespace ingot
