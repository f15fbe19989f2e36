// Attention of several sequences, with an online softmax: causal over their pages, or as another
// header says.
//
// A unit of work is (sequence, KV head, block of rows). A row is one query of one head of the group
// that shares the KV head, so that keys and values are read once for the whole group. Keys are
// visited in tiles at absolute positions. Where there are fewer units than threads need, chunks of
// a long context are units, too.
#pragma once

#include "amx.h"
#include "latent_rows.h"
#include "query_rows.h"
#include "sequences.h"

#if defined(__AMX_BF16__)
#include "amx_latent.h"
#include "amx_rows.h"
#endif

namespace ingot {

// Keys whose weights are summed before they join others'. Two threads can share so many.
inline constexpr int chunk_keys = 1024;

// The rows of a KV head of a cache; T: what queries and weights of keys are rounded to.
template <class T, class Cache, bool Capped>
struct RowsOver;
template <class T, class S, int KvHeads, int PageSize, int D, bool Capped>
struct RowsOver<T, Cache<S, KvHeads, PageSize, D>, Capped> {
  using type = QueryRows<T, S, D, Capped>;
};
template <class T, class S, int PageSize, int D, int V, int block, bool Capped>
struct RowsOver<T, LatentCache<S, PageSize, D, V, block>, Capped> {
  using type = LatentRows<T, LatentCache<S, PageSize, D, V, block>, Capped>;
};
#if defined(__AMX_BF16__)
template <class S, int KvHeads, int PageSize, int D, bool Capped>
struct RowsOver<bf16, Cache<S, KvHeads, PageSize, D>, Capped> {
  using type = AmxRows<AmxReader<S, D>, Capped>;
};
template <class S, int PageSize, int D, int V, int block, bool Capped>
struct RowsOver<bf16, LatentCache<S, PageSize, D, V, block>, Capped> {
  using type = AmxRows<AmxLatentReader<S, D, V, block>, Capped>;
};
#endif

// Whether scores depend on distances: then rows are told which queries they are.
template <class Cache>
inline constexpr bool has_distances = false;

// The sequences of a step, and the keys that a query sees: its own and those before it, at most
// Window of them if that is not 0.
template <int Window>
struct CausalMask : Sequences {
  Range visible(int s, int query) const {
    const int at = position(s, query);
    return {Window > 0 && at >= Window ? at - Window + 1 : 0, at + 1};
  }
};

// A mask says what a query sees, as the one above. Neither end falls from a query to the next.
template <class T, class Cache, int Heads, class Mask, bool Capped>
class Attention {
 public:
  static constexpr int kv_heads = Cache::heads, group = Heads / kv_heads;

  Mask sequences;
  Cache cache;
  Scoring scoring;
  const float* sinks;  // a logit of each query head, or null

  // `to` takes the result of a head at a row and a column, in memory that it may overwrite.
  template <class To>
  void run(Team team, Rows<const T> q, const To& to) const {
    const Dealing dealing = dealt(team);
    auto& memory = team.large_workspace<Memory>();
    Block& block = memory.block;
    block.begin();
    Visits visits(*this, q, team.rank, dealing);
    for (; exists(visits.now().unit); visits.advance()) {
      const Visit& now = visits.now();
      const Unit& unit = now.unit;
      if (now.begins()) start(block, unit, q);
      block.visit(now.tile, visits.ahead().tile, scoring);
      end_chunk(memory, now);
      if (now.ends() && (unit.chunks == 1 || has_joined(memory, unit, dealing)))
        for (int r = 0; r < unit.count; ++r)
          to.take(query_of(unit, r), head_of(unit, r) * Cache::value_size, block.result(r));
    }
  }

 private:
  using Block = typename RowsOver<T, Cache, Capped>::type;
  using Part = typename Block::Part;
  static constexpr int keys_at_once = Block::keys_at_once;
  static_assert(chunk_keys % keys_at_once == 0, "a tile is of one chunk");
  // What rows know of chunks before the one that they visit is touched once in a chunk.
  struct Memory {
    Block block;
    Part aside[Block::most_rows];
  };
  using Tile = decltype(locate<keys_at_once>(Cache{}, nullptr, 0, 0, 0, 0));

  // How rows and keys become units, one for each of so many threads in turn: rows of a block, and
  // the most chunks of keys that are units of their own. Those meet in the team's shared memory,
  // unless that is null.
  struct Dealing {
    int threads, rows, chunks;
    Shared* shared;
  };

  // Rows [row, row + count) of a sequence and a KV head, which see keys [begin, end), or one of the
  // `chunks` of these that are units. `place` is that of (head, chunk) among the units of these
  // rows, and `number` counts the units of rows before them, whatever their chunks.
  struct Unit {
    int sequence, place, row = 0, number = 0;
    int count = 0, begin = 0, end = 0, head = 0, chunk = 0, chunks = 1;
  };
  // The rows of a unit visit the tile that starts at that key.
  struct Visit {
    Unit unit;
    int start;
    Tile tile;

    bool begins() const { return start == first_tile(unit); }
    bool ends() const { return start + keys_at_once >= unit.end; }
  };

  // What a thread visits, and the next few visits, whose tiles it fetches, even of another unit.
  class Visits {
   public:
    Visits(const Attention& of, Rows<const T> q, int rank, const Dealing& dealing)
        : of_(of), q_(q), dealing_(dealing) {
      begin(ring_[0], of.settled({0, rank}, dealing));
      for (int i = 0; i < count - 1; ++i) follow(ring_[i], ring_[i + 1]);
    }

    const Visit& now() const { return ring_[now_]; }
    // Its tile is the last one, if there are no more.
    const Visit& ahead() const { return ring_[(now_ + count - 1) % count]; }

    void advance() {
      follow(ahead(), ring_[now_]);
      now_ = (now_ + 1) % count;
    }

   private:
    static constexpr int count = Block::tiles_ahead + 1;

    void follow(const Visit& visit, Visit& next) {
      if (of_.exists(visit.unit) && !visit.ends()) {
        next.unit = visit.unit;
        next.start = visit.start + keys_at_once;
        next.tile = of_.tile_at(next);
        return;
      }
      begin(next, of_.following(visit.unit, dealing_));
      if (of_.exists(next.unit))
        of_.fetch_queries(next.unit, q_);
      else
        next.tile = visit.tile;
    }
    void begin(Visit& visit, const Unit& unit) {
      visit.unit = unit;
      visit.start = first_tile(unit);
      if (of_.exists(unit)) visit.tile = of_.tile_at(visit);
    }

    const Attention& of_;
    Rows<const T> q_;
    const Dealing& dealing_;
    Visit ring_[count] = {};
    int now_ = 0;
  };

  int num_rows(int s) const { return sequences.num_queries(s) * group; }
  // The keys that rows [row, end) of a sequence see.
  Range keys_of(int s, int row, int end) const {
    return {sequences.visible(s, row / group).begin, sequences.visible(s, (end - 1) / group).end};
  }
  static int num_chunks(Range keys) {
    return (keys.end - 1) / chunk_keys - keys.begin / chunk_keys + 1;
  }

  int num_units(const Dealing& dealing) const {
    int units = 0;
    for (int s = 0; s < sequences.count; ++s)
      for (int row = 0, rows = num_rows(s); row < rows; row += dealing.rows) {
        const int end = row + dealing.rows < rows ? row + dealing.rows : rows;
        units += kv_heads * (dealing.shared != nullptr ? num_chunks(keys_of(s, row, end)) : 1);
      }
    return units;
  }

  // Few units that threads do not have equally many of are cut into chunks, as far as there is
  // memory for the parts of their results.
  Dealing dealt(Team team) const {
    Dealing whole{team.size, 1, 1, nullptr};
    int chunks = 1;
    for (int s = 0; s < sequences.count; ++s) {
      const int rows = num_rows(s);
      if (rows > whole.rows) whole.rows = rows < Block::most_rows ? rows : Block::most_rows;
      if (rows > 0) chunks = larger(chunks, num_chunks(keys_of(s, 0, rows)));
    }
    const bool few = num_units(whole) < 4 * team.size && !even_heads(kv_heads, team);
    if (!few || chunks == 1 || team.shared == nullptr) return for_all(whole);
    const Dealing apart = for_all({team.size, whole.rows, chunks, team.shared});
    const int units = num_units({team.size, apart.rows, 1, nullptr});
    const std::size_t parts = static_cast<std::size_t>(units) * chunks * apart.rows;
    return units <= Shared::most_counters && parts * sizeof(Part) <= Shared::bytes
               ? apart
               : for_all(whole);
  }
  static int larger(int a, int b) { return a > b ? a : b; }

  // With as few rows in a block as it takes for all threads to have a unit.
  Dealing for_all(Dealing dealing) const {
    while (dealing.rows > 1 && num_units(dealing) < dealing.threads) dealing.rows /= 2;
    return dealing;
  }

  bool exists(const Unit& unit) const { return unit.sequence < sequences.count; }

  // A thread's next unit.
  Unit following(Unit unit, const Dealing& dealing) const {
    unit.place += dealing.threads;
    return settled(unit, dealing);
  }

  // Turns a place past the last into a unit of the next rows or of the next sequence.
  Unit settled(Unit unit, const Dealing& dealing) const {
    while (exists(unit)) {
      const int rows = num_rows(unit.sequence) - unit.row;
      if (rows <= 0) {
        unit.row = 0;
        ++unit.sequence;
        continue;
      }
      unit.count = rows < dealing.rows ? rows : dealing.rows;
      const Range keys = keys_of(unit.sequence, unit.row, unit.row + unit.count);
      unit.chunks = dealing.shared != nullptr ? num_chunks(keys) : 1;
      unit.begin = keys.begin;
      unit.end = keys.end;
      if (unit.place < kv_heads * unit.chunks) return in_chunk(unit, dealing.threads);
      unit.place -= kv_heads * unit.chunks;
      unit.number += kv_heads;
      unit.row += dealing.rows;
    }
    return unit;
  }
  static Unit in_chunk(Unit unit, int threads) {
    unit.head = unit.place / unit.chunks;
    unit.chunk = unit.place % unit.chunks;
    if (kv_heads % threads == 0)  // see even_heads
      unit.head = unit.place % threads * (kv_heads / threads) + unit.place / threads;
    if (unit.chunks == 1) return unit;
    const int begin = (unit.begin / chunk_keys + unit.chunk) * chunk_keys;
    if (unit.begin < begin) unit.begin = begin;
    if (unit.end > begin + chunk_keys) unit.end = begin + chunk_keys;
    return unit;
  }

  // Where a unit's first tile starts.
  static int first_tile(const Unit& unit) { return unit.begin / keys_at_once * keys_at_once; }

  Tile tile_at(const Visit& visit) const {
    const Unit& unit = visit.unit;
    const int* pages = sequences.page_table + unit.sequence * sequences.page_table_stride;
    return locate<keys_at_once>(cache, pages, unit.head, visit.start, unit.begin, unit.end);
  }

  // After the last tile of a chunk.
  static void end_chunk(Memory& memory, const Visit& visit) {
    const int end = visit.start + keys_at_once, chunk = visit.start / chunk_keys * chunk_keys;
    if (!visit.ends() && end % chunk_keys != 0) return;
    if (chunk > visit.unit.begin) memory.block.join(chunk, memory.aside);
    if (!visit.ends()) memory.block.put_aside(memory.aside);
  }

  // Leaves a chunk to the thread that has the last one, which adds all of them up in their order.
  static bool has_joined(Memory& memory, const Unit& unit, const Dealing& dealing) {
    Block& block = memory.block;
    const int number = unit.number + unit.head;
    const std::ptrdiff_t each = dealing.rows;
    Part* parts = reinterpret_cast<Part*>(dealing.shared->memory) + number * dealing.chunks * each;
    block.store_parts(parts + unit.chunk * each);
    std::atomic<int>& arrived = dealing.shared->counters[number];
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < unit.chunks) return false;
    arrived.store(0, std::memory_order_relaxed);
    const int first = unit.begin / chunk_keys - unit.chunk;
    for (int chunk = 0; chunk < unit.chunks; ++chunk) {
      block.load_parts(parts + chunk * each);
      if (chunk > 0) block.join((first + chunk) * chunk_keys, memory.aside);
      if (chunk + 1 < unit.chunks) block.put_aside(memory.aside);
    }
    return true;
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
      const Range visible = sequences.visible(unit.sequence, (unit.row + r) / group);
      block.add(query(q, unit, r), visible.begin, visible.end,
                sinks == nullptr ? -__builtin_inff() : sinks[head_of(unit, r)]);
      if constexpr (has_distances<Cache>)
        block.place((unit.row + r) / group, cache.of_query(query_of(unit, r), head_of(unit, r)));
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

// Rounds it to integers in groups.
template <int D, int group, class V>
struct QuantizeHead {
  static_assert(D % group == 0, "groups are a head's");
  Rows<V> values;
  Rows<float> scales;

  void take(int row, int column, const float* head) const {
    quantize_row<D, group>(head, integer_row(values, row).from(column),
                           scales[row] + column / group);
  }
};

template <int Heads, int Window, bool Capped, class T, class Cache, class Out>
[[gnu::noinline, gnu::noipa]]
void paged_attention(Team team, Rows<const T> q, Cache cache, Sequences sequences, float scale,
                     float softcap, Rows<Out> out, const float* sinks = nullptr) {
  const Attention<T, Cache, Heads, CausalMask<Window>, Capped> attention{
      {sequences}, cache, {scale, softcap}, sinks};
  attention.run(team, q, StoreHead<Cache::value_size, Out>{out});
}

template <int Heads, int Window, bool Capped, int group, class T, class Cache, class V>
[[gnu::noinline, gnu::noipa]]
void paged_attention_quantize(Team team, Rows<const T> q, Cache cache, Sequences sequences,
                              float scale, float softcap, Rows<V> values,
                              Rows<float> scales, const float* sinks = nullptr) {
  const Attention<T, Cache, Heads, CausalMask<Window>, Capped> attention{
      {sequences}, cache, {scale, softcap}, sinks};
  attention.run(team, q, QuantizeHead<Cache::value_size, group, V>{values, scales});
}

}  // namespace ingot
