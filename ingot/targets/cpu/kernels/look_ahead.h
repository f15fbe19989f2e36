// Tells a thread of the attention that comes next.
#pragma once

#include "cache.h"
#include "latent_cache.h"
#include "next_attention.h"

namespace ingot {

// The pages of a cache, of which each thread fetches its share of the heads.
template <class S, int KvHeads, int PageSize, int D>
NextAttention::Pages pages_of(const Cache<S, KvHeads, PageSize, D>& cache, Team team) {
  const Range heads = share(KvHeads, team);
  const auto bytes = [](std::ptrdiff_t token) {
    return token * D * static_cast<std::ptrdiff_t>(sizeof(S));
  };
  const std::ptrdiff_t first = bytes(cache.token(0, heads.begin, 0));
  return {reinterpret_cast<const char*>(cache.keys) + first,
          reinterpret_cast<const char*>(cache.values) + first, bytes(cache.token(1, 0, 0)),
          bytes(cache.token(0, heads.end - heads.begin, 0)), PageSize};
}

template <int Window, class S, int KvHeads, int PageSize, int D>
[[gnu::noinline, gnu::noipa]]
void look_ahead(Team team, Cache<S, KvHeads, PageSize, D> cache, Sequences sequences) {
  *team.next_attention = {pages_of(cache, team), Window, sequences};
}
// Latent rows are read by so much arithmetic that they need no help.
template <int Window, class S, int PageSize, int D, int V, int block>
void look_ahead(Team team, LatentCache<S, PageSize, D, V, block>, Sequences) {
  *team.next_attention = {};
}
inline void look_away(Team team) { *team.next_attention = {}; }

}  // namespace ingot
