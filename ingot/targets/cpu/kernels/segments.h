// Attention of rows over the rows of their segment: many at once, all of which are there.
//
// Keys and values are rows of the step. What a block of queries visits of them is packed into tiles
// as a cache would have them, for the same products. Packing takes a few hundredths of the time.
#pragma once

#include "attention.h"
#include "turn.h"

namespace ingot {

// The segments of a step, and the keys that a query sees: those that are less than Window away, if
// that is not 0, and not behind it, if Causal. A segment's page table is its span, since its first
// row says where all keys lie.
template <int Window, bool Causal>
struct SegmentMask : Sequences {
  SegmentMask(int segments, const int* ranges) : Sequences{segments, ranges, ranges, 3} {}

  Range visible(int s, int query) const {
    const int length = num_queries(s), end = Window > 0 ? query + Window : length;
    return {Window > 0 && query >= Window ? query - Window + 1 : 0,
            Causal ? query + 1 : end < length ? end : length};
  }
};

// The keys and values of a step in rows of heads.
template <class T, int KvHeads, int D>
struct HeadRows {
  static constexpr int heads = KvHeads, key_size = D, value_size = D;
  Rows<const T> keys, values;
};

// A tile of a segment.
template <class T, int Keys>
struct RowTile : SeenKeys {
  Rows<const T> keys, values;  // from its first one on
};

// The tile at `start` of a segment whose keys [begin, end) are seen.
template <int Keys, class T, int KvHeads, int D>
inline RowTile<T, Keys> locate(const HeadRows<T, KvHeads, D>& rows, const int* first, int head,
                               int start, int begin, int end) {
  const auto from = [&](Rows<const T> x) {
    return Rows<const T>{x.data + (*first + start) * x.stride + head * D, x.stride};
  };
  return {SeenKeys::of_tile(Keys, start, begin, end), from(rows.keys), from(rows.values)};
}

// A tile as a cache of S has it, from rows of T.
template <class T, class S, int D, int Keys>
class PackedTile {
 public:
  PackedTile() = default;
  PackedTile(const PackedTile&) = delete;  // it knows where it lies

  // It fetches the same rows of the next tile.
  const Tile<S, Keys>& pack(const RowTile<T, Keys>& from, const RowTile<T, Keys>& next) {
    static_cast<SeenKeys&>(tile_) = from;
    const Range groups = tile_.groups();
    for (int g = 0; g < Keys / key_group; ++g) {
      const std::ptrdiff_t place = g * key_group * D;
      tile_.keys.at[g] = keys_ + place;
      tile_.values.at[g] = values_ + place;
      if (g < groups.begin || g >= groups.end) continue;
      const T *keys[key_group], *values[key_group];
      for (int i = 0; i < key_group; ++i) {
        const int key = g * key_group + i;
        keys[i] = from.shows(key) ? from.keys[key] : zeros;
        values[i] = from.shows(key) ? from.values[key] : zeros;
        if (next.shows(key)) fetch(next, key);
      }
      pack_keys(keys, keys_ + place);
      pack_values(values, values_ + place);
    }
    return tile_;
  }

 private:
  static constexpr int depth = Dot<S>::depth;
  static constexpr int words = D / depth;  // of a head; a word is 32 bits

  static void fetch(const RowTile<T, Keys>& tile, int key) {
    for (int d = 0; d < D; d += 64 / sizeof(T)) {
      prefetch(tile.keys[key] + d);
      prefetch(tile.values[key] + d);
    }
  }

  // So many words of a row from one on, in S.
  static vf load_words(const T* row, int word, Full) { return load(place(row, word)); }
  static vf load_words(const T* row, int word, Part part) {
    return load(place(row, word), part.count);
  }
  static auto place(const T* row, int word) {
    if constexpr (std::is_same_v<T, S>)
      return reinterpret_cast<const float*>(row) + word;  // two bfloat16 in one
    else
      return row + word;
  }

  static void pack_keys(const T* const (&rows)[key_group], S* to) {
    float* columns = reinterpret_cast<float*>(to);
    for (int first = 0; first < key_group; first += lanes)
      for_columns<words>([&](int word, auto part) {
        vf square[lanes];
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) square[i] = load_words(rows[first + i], word, part);
        turn(square);
        for (int i = 0; i < count_of(part); ++i)
          store(columns + (word + i) * key_group + first, square[i]);
      });
  }
  static constexpr int count_of(Full) { return lanes; }
  static int count_of(Part part) { return part.count; }

  // Of rows that end within a vector, the next ones overwrite what exceeds them.
  static void pack_values(const T* const (&rows)[key_group], S* to) {
    for (int i = 0; i < key_group; i += depth)
      for (int d = 0; d < D; d += lanes)
        if constexpr (std::is_same_v<T, S>)
          Dot<S>::store_columns(to + i * D + d * depth, Dot<S>::columns(rows + i, d, D - d));
        else
          store(to + i * D + d, D - d < lanes ? load(rows[i] + d, D - d) : load(rows[i] + d));
  }

  static constexpr T zeros[D] = {};  // of a key that no row sees, which may lie outside of memory
  alignas(64) S keys_[Keys * D];
  alignas(64) S values_[Keys * D + depth * lanes];
  Tile<S, Keys> tile_;
};

// Rows that pack what they visit.
template <class T, class S, int D, class PackedRows>
class SegmentRows : public PackedRows {
 public:
  using Tile = RowTile<T, PackedRows::keys_at_once>;

  void visit(const Tile& now, const Tile& next, Scoring scoring) {
    const auto& packed = packed_.pack(now, next);
    PackedRows::visit(packed, packed, scoring);
  }

 private:
  PackedTile<T, S, D, PackedRows::keys_at_once> packed_;
};

// So many queries that packing takes little beside what they do with a tile.
template <int D>
inline constexpr int most_segment_rows = D <= 256 ? 144 : 48;

template <class T, int KvHeads, int D, bool Capped>
struct RowsOver<T, HeadRows<T, KvHeads, D>, Capped> {
  using S = Wide<T>;
  using type = SegmentRows<T, S, D, QueryRows<T, S, D, Capped, most_segment_rows<D>>>;
};
#if defined(__AMX_BF16__)
template <int KvHeads, int D, bool Capped>
struct RowsOver<bf16, HeadRows<bf16, KvHeads, D>, Capped> {
  using type = SegmentRows<bf16, bf16, D, AmxRows<AmxReader<bf16, D>, Capped>>;
};
#endif

// What is added to products, by how far a query stands behind a key: numbers for buckets of
// distances. Rows of queries have some for each head, times `factor`, and so have those of keys; data
// is null where there are none.
struct Distances {
  const float* buckets;  // of distances from -reach to reach; farther ones have those of the ends
  int reach;
  Rows<const float> queries, keys;
  float factor;

  int bucket(int distance) const {
    const int near = distance < -reach ? -reach : distance > reach ? reach : distance;
    return static_cast<int>(buckets[near + reach]);
  }
};

template <class T, int KvHeads, int D, int Buckets>
struct DistantRows : HeadRows<T, KvHeads, D> {
  Distances distances;

  const float* of_query(int row, int head) const {
    const Rows<const float> x = distances.queries;
    return x.data == nullptr ? nullptr : x[row] + head * Buckets;
  }
};
template <class T, int KvHeads, int D, int Buckets>
inline constexpr bool has_distances<DistantRows<T, KvHeads, D, Buckets>> = true;

template <class T, int Keys>
struct DistantTile : RowTile<T, Keys> {
  const Distances* distances;
  Rows<const float> by_key;  // numbers of the tile's keys
};

template <int Keys, class T, int KvHeads, int D, int Buckets>
inline DistantTile<T, Keys> locate(const DistantRows<T, KvHeads, D, Buckets>& rows,
                                   const int* first, int head, int start, int begin, int end) {
  const HeadRows<T, KvHeads, D>& plain = rows;
  const Rows<const float> x = rows.distances.keys;
  const float* by_key =
      x.data == nullptr ? nullptr : x.data + (*first + start) * x.stride + head * Buckets;
  return {locate<Keys>(plain, first, head, start, begin, end), &rows.distances, {by_key, x.stride}};
}

// Rows whose scores begin with what is added to them.
template <class T, class PlainRows>
class DistantSegmentRows : public PlainRows {
 public:
  using Tile = DistantTile<T, PlainRows::keys_at_once>;

  // Follows `add`: the row's query in its segment, and its numbers.
  void place(int query, const float* numbers) { places_[this->count - 1] = {query, numbers}; }

  void visit(const Tile& now, const Tile& next, Scoring scoring) {
    const int nearest = places_[0].query - now.start - (keys - 1);
    const int farthest = places_[this->count - 1].query - now.start;
    for (int distance = nearest; distance <= farthest; ++distance)
      buckets_[distance - nearest] = now.distances->bucket(distance);
    for (int r = 0; r < this->count; ++r) begin_scores(r, now);
    if (now.by_key.data != nullptr)
      for (int key = now.begin; key < now.end; key += keys_together) add_of_keys(key, now);
    PlainRows::visit(now, next, scoring);
  }

 private:
  static constexpr int keys = PlainRows::keys_at_once;
  struct Place {
    int query;
    const float* numbers;
  };

  // Those of a row and the keys of the tile: they lie in front of that of the first one.
  const int* buckets(int r) const {
    return buckets_ + places_[r].query - places_[0].query + (keys - 1);
  }

  void begin_scores(int r, const Tile& now) {
    float* scores = this->scores_[r];
    for (int key = 0; key < keys; ++key) scores[key] = 0.0f;
    const float* numbers = places_[r].numbers;
    if (numbers == nullptr) return;
    const int* of_keys = buckets(r);
    for (int key = now.begin; key < now.end; ++key)
      scores[key] = numbers[of_keys[-key]] * now.distances->factor;
  }

  // Numbers of few keys stay in the L1 cache: those of many may all take the same place in it.
  static constexpr int keys_together = 4;
  void add_of_keys(int first, const Tile& now) {
    const int end = first + keys_together < now.end ? first + keys_together : now.end;
    for (int r = 0; r < this->count; ++r)
      for (int key = first; key < end; ++key)
        this->scores_[r][key] += now.by_key[key][buckets(r)[-key]];
  }

  Place places_[PlainRows::most_rows];
  int buckets_[PlainRows::most_rows + keys];
};

template <class T, int KvHeads, int D, int Buckets, bool Capped>
struct RowsOver<T, DistantRows<T, KvHeads, D, Buckets>, Capped> {
  using S = Wide<T>;
  using Packed = QueryRows<T, S, D, Capped, most_segment_rows<D>, Start::resume>;
  using type = DistantSegmentRows<T, SegmentRows<T, S, D, Packed>>;
};

// `keys` are the rows of keys and values, and `to` takes the result of each head.
template <int Heads, int Window, bool Causal, bool Capped, class T, class Keys, class To>
[[gnu::noinline, gnu::noipa]]
void segment_attention(Team team, Rows<const T> q, Keys keys, int count, const int* spans,
                       float scale, float softcap, To to) {
  const Attention<T, Keys, Heads, SegmentMask<Window, Causal>, Capped> attention{
      {count, spans}, keys, {scale, softcap}, nullptr};
  attention.run(team, q, to);
}

}  // namespace ingot
