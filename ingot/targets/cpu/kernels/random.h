// Random numbers that are a function of their counter: Philox4x32-10 (Salmon et al., "Parallel
// random numbers: as easy as 1, 2, 3", 2011).
#pragma once

#include <cstdint>

namespace ingot {

// 53 random bits for a place in a request, under a seed.
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t key, std::uint64_t position) {
  std::uint32_t a = static_cast<std::uint32_t>(position), b = position >> 32;
  std::uint32_t c = static_cast<std::uint32_t>(key), d = key >> 32;
  std::uint32_t k = static_cast<std::uint32_t>(seed), l = seed >> 32;
  for (int round = 0; round < 10; ++round, k += 0x9e3779b9, l += 0xbb67ae85) {
    const std::uint64_t first = 0xd2511f53ull * a, second = 0xcd9e8d57ull * c;
    a = static_cast<std::uint32_t>(second >> 32) ^ b ^ k;
    b = static_cast<std::uint32_t>(second);
    c = static_cast<std::uint32_t>(first >> 32) ^ d ^ l;
    d = static_cast<std::uint32_t>(first);
  }
  return (a | static_cast<std::uint64_t>(b) << 32) >> 11;
}

// A number below `total`, all of them equally likely (up to 2^-53 of it).
inline std::uint64_t random_below(std::uint64_t total, std::uint64_t bits) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(total) * bits >> 53);
}

}  // namespace ingot
