// Causal attention of several sequences over their pages, with an online softmax.
//
// A unit of work is (sequence, KV head, block of rows). A row is one query of one head of the group
// that shares the KV head, so that keys and values are read once for the whole group. Keys are
// visited in tiles of 64 at absolute positions.
#pragma once

#include "amx.h"
#include "latent_rows.h"
#include "query_rows.h"
#include "sequences.h"

#if defined(__AMX_BF16__)
#include "amx_rows.h"
#endif

namespace ingot {

#if !defined(__AMX_BF16__)
template <class S, int D, bool Capped>
class AmxRows;  // never used
#endif

// The rows of a KV head of a cache; T: what queries, keys and values are multiplied in.
template <class T, class Cache, bool Capped>
struct RowsOver;
template <class T, class S, int KvHeads, int PageSize, int D, bool Capped>
struct RowsOver<T, Cache<S, KvHeads, PageSize, D>, Capped> {
  static constexpr bool in_tiles = amx::available && std::is_same_v<T, bf16>;
  using type = std::conditional_t<in_tiles, AmxRows<S, D, Capped>, QueryRows<T, S, D, Capped>>;
};
template <class T, class S, int PageSize, int D, int V, int block, bool Capped>
struct RowsOver<T, LatentCache<S, PageSize, D, V, block>, Capped> {
  using type = LatentRows<T, LatentCache<S, PageSize, D, V, block>, Capped>;
};

template <class T, class Cache, int Heads, int Window, bool Capped>
class PagedAttention {
 public:
  static constexpr int kv_heads = Cache::heads, group = Heads / kv_heads;

  Sequences sequences;
  Cache cache;
  Scoring scoring;
  const float* sinks;  // a logit of each query head, or null

  // `to` takes the result of a head at a row and a column, in memory that it may overwrite.
  template <class To>
  void run(Team team, Rows<const T> q, const To& to) const {
    int rows_per_block = Block::most_rows;
    while (rows_per_block > 1 && num_units(rows_per_block) < team.size) rows_per_block /= 2;
    auto& block = team.large_workspace<Block>();
    block.begin();
    // Heads in turn: see even_heads.
    Unit unit = settled({0, team.rank, 0, 0, 0, 0}, rows_per_block);
    while (unit.sequence < sequences.count) {
      const Unit next =
          settled({unit.sequence, unit.head + team.size, unit.row, 0, 0, 0}, rows_per_block);
      run_unit(block, unit, next, q, to);
      unit = next;
    }
  }

 private:
  using Block = typename RowsOver<T, Cache, Capped>::type;
  static constexpr int keys_at_once = Block::keys_at_once;
  using Tile = decltype(locate<keys_at_once>(Cache{}, nullptr, 0, 0, 0, 0));

  // Rows [row, row + count) of a sequence and a KV head, which see keys [begin, end).
  struct Unit {
    int sequence, head, row, count, begin, end;
  };

  int num_rows(int s) const { return sequences.num_queries(s) * group; }
  int num_units(int rows_per_block) const {
    int units = 0;
    for (int s = 0; s < sequences.count; ++s)
      units += (num_rows(s) + rows_per_block - 1) / rows_per_block * kv_heads;
    return units;
  }

  static int first_key(int position) {
    return Window > 0 && position >= Window ? position - Window + 1 : 0;
  }

  // Turns a head past the last into a unit of the next rows or of the next sequence.
  Unit settled(Unit unit, int rows_per_block) const {
    while (unit.sequence < sequences.count) {
      const int rows = num_rows(unit.sequence) - unit.row;
      if (rows <= 0) {
        unit.row = 0;
        ++unit.sequence;
      } else if (unit.head >= kv_heads) {
        unit.head -= kv_heads;
        unit.row += rows_per_block;
      } else {
        unit.count = rows < rows_per_block ? rows : rows_per_block;
        unit.begin = first_key(sequences.position(unit.sequence, unit.row / group));
        unit.end = sequences.position(unit.sequence, (unit.row + unit.count - 1) / group) + 1;
        break;
      }
    }
    return unit;
  }

  Tile tile_at(const Unit& unit, int start) const {
    const int* pages = sequences.page_table + unit.sequence * sequences.page_table_stride;
    return locate<keys_at_once>(cache, pages, unit.head, start, unit.begin, unit.end);
  }
  Tile first_tile(const Unit& unit) const {
    return tile_at(unit, unit.begin / keys_at_once * keys_at_once);
  }

  template <class To>
  __attribute__((noinline)) void run_unit(Block& block, const Unit& unit, const Unit& following,
                                          Rows<const T> q, const To& to) const {
    start(block, unit, q);
    if (following.sequence < sequences.count) fetch_queries(following, q);
    Tile now = first_tile(unit);
    for (bool last = false; !last;) {
      last = now.start + keys_at_once >= unit.end;
      const Tile next = !last ? tile_at(unit, now.start + keys_at_once)
                        : following.sequence < sequences.count ? first_tile(following)
                                                               : now;
      block.visit(now, next, scoring);
      now = next;
    }
    for (int r = 0; r < unit.count; ++r)
      to.take(query_of(unit, r), head_of(unit, r) * Cache::value_size, block.result(r));
  }

  // The place of a unit's row in the step's queries and results.
  int query_of(const Unit& unit, int r) const {
    return sequences.first_row(unit.sequence) + (unit.row + r) / group;
  }
  static int head_of(const Unit& unit, int r) {
    return unit.head * group + (unit.row + r) % group;
  }
  const T* query(Rows<const T> q, const Unit& unit, int r) const {
    return q[query_of(unit, r)] + head_of(unit, r) * Cache::key_size;
  }

  // Queries lie a whole row of heads apart, which the hardware does not foresee.
  void fetch_queries(const Unit& unit, Rows<const T> q) const {
    for (int r = 0; r < unit.count; ++r) {
      const T* from = query(q, unit, r);
      for (int d = 0; d < Cache::key_size; d += 64 / sizeof(T)) prefetch(from + d);
    }
  }

  void start(Block& block, const Unit& unit, Rows<const T> q) const {
    block.count = 0;
    for (int r = 0; r < unit.count; ++r) {
      const int position = sequences.position(unit.sequence, (unit.row + r) / group);
      block.add(query(q, unit, r), first_key(position), position + 1,
                sinks == nullptr ? -__builtin_inff() : sinks[head_of(unit, r)]);
    }
    block.ready();
  }
};

// Stores a head as it is.
template <int D, class Out>
struct StoreHead {
  Rows<Out> out;

  void take(int row, int column, const float* head) const {
    for_columns<D>([&](int c, auto part) {
      store(out[row] + column + c, load(head + c, part), part);
    });
  }
};

// Rounds it to int8 in groups.
template <int D, int group>
struct QuantizeHead {
  static_assert(D % group == 0, "groups are a head's");
  Rows<std::int8_t> values;
  Rows<float> scales;

  void take(int row, int column, const float* head) const {
    quantize_row<D, group>(head, values[row] + column, scales[row] + column / group);
  }
};

template <int Heads, int Window, bool Capped, class T, class Cache, class Out>
[[gnu::noinline, gnu::noipa]]
void paged_attention(Team team, Rows<const T> q, Cache cache, Sequences sequences, float scale,
                     float softcap, Rows<Out> out, const float* sinks = nullptr) {
  PagedAttention<T, Cache, Heads, Window, Capped>{sequences, cache, {scale, softcap}, sinks}.run(
      team, q, StoreHead<Cache::value_size, Out>{out});
}

template <int Heads, int Window, bool Capped, int group, class T, class Cache>
[[gnu::noinline, gnu::noipa]]
void paged_attention_quantize(Team team, Rows<const T> q, Cache cache, Sequences sequences,
                              float scale, float softcap, Rows<std::int8_t> values,
                              Rows<float> scales, const float* sinks = nullptr) {
  PagedAttention<T, Cache, Heads, Window, Capped>{sequences, cache, {scale, softcap}, sinks}.run(
      team, q, QuantizeHead<Cache::value_size, group>{values, scales});
}

}  // namespace ingot
