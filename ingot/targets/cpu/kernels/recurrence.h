// A matrix for each head that decays, takes up a row, and is read, token by token; see docs/cpu.md.
//
// A unit of work is a block of the columns of a head, in a sequence. The block is so small that it
// stays in the first level of cache while the tokens pass over it. One pass over it decays it, takes
// up a token, sums up what that token reads of it, and what the next token corrects in it.
//
// Columns are the lanes of vectors, and sums go over rows, in an order that depends on their number
// alone. So a token has the same bits whatever other tokens a step has and whoever computes a block.
#pragma once

#include "records.h"
#include "recurrence_block.h"

namespace ingot {

enum class Rule { add, delta, low_rank };

// What tokens give a recurrence. `beta`, `a`, `b` and `skip` are null where there is none.
struct RecurrenceRows {
  Rows<const float> q, k, v, decay, beta, a, b;
  const float* skip;
};

template <Rule rule, int Groups, int Heads, int D, int P, bool ByKey, class Out>
struct Recurrence {
  using Block = RecurrenceBlock<D>;
  static constexpr int chains = Block::chains, blocks = (P + Block::columns - 1) / Block::columns;
  static constexpr int most_tokens = 32;  // whose factors are prepared together
  static constexpr int ahead = 4;         // tokens between the one whose rows are fetched and this
  static constexpr bool corrects = rule != Rule::add;
  static constexpr bool scales_keys = rule == Rule::delta && ByKey;

  struct Workspace {
    alignas(64) float block[D * Block::columns];
    alignas(64) float zeros[2 * Block::columns];  // every row of a matrix of zeros
    alignas(64) float decay[most_tokens][ByKey ? D : 1];
    alignas(64) float keys[most_tokens][scales_keys ? D : 1];
  };

  // The factors of a token by which rows of the block decay and take up, and with which sums are
  // multiplied: what it reads, and what the next one corrects.
  struct Factors {
    const float *decay, *k, *b, *q, *corrected;
  };

  const RecurrenceRows& given;
  const Records& records;
  float* state;
  Rows<Out> out;

  static constexpr int group_of(int head) { return head / (Heads / Groups); }

  const float* key(int row, int head) const { return given.k[row] + group_of(head) * D; }

  // What the sums of corrections multiply rows with.
  const float* corrected(const Workspace& work, int row, int place, int head) const {
    if constexpr (rule == Rule::low_rank) return given.a[row] + head * D;
    if constexpr (scales_keys) return work.keys[place];
    return key(row, head);
  }

  // Rows of tokens lie far apart, so hardware does not fetch them.
  template <int Columns>
  static void fetch(const float* row) {
    for (int c = 0; c < Columns; c += 16) prefetch(row + c);
  }

  void fetch(int token, int head) const {
    fetch<D>(key(token, head));
    fetch<D>(given.q[token] + group_of(head) * D);
    fetch<P>(given.v[token] + head * P);
    if constexpr (ByKey) fetch<D>(given.decay[token - ahead + most_tokens] + head * D);
    if constexpr (rule == Rule::low_rank) {
      fetch<D>(given.a[token] + head * D);
      fetch<D>(given.b[token] + head * D);
    }
  }

  void prepare(Workspace& work, Range tokens, int head) const {
    const int count = tokens.end - tokens.begin;
    if constexpr (ByKey) {
      for (int i = 0; i < count; ++i) {
        const float* decay = given.decay[tokens.begin + i] + head * D;
        const float* k = key(tokens.begin + i, head);
        for_columns<D>([&](int c, auto part) {
          const vf factor = exp(load(decay + c, part));
          store(work.decay[i] + c, factor, part);
          if constexpr (scales_keys) store(work.keys[i] + c, factor * load(k + c, part), part);
        });
      }
    } else {
      float* decay = work.decay[0];
      for (int i = 0; i < count; ++i) decay[i] = given.decay[tokens.begin + i][head];
      int i = 0;
      for (; i + lanes <= count; i += lanes) store(decay + i, exp(load(decay + i)));
      if (i < count) store(decay + i, exp(load(decay + i, count - i)), count - i);
    }
  }

  // What the first token corrects; meanwhile the beginnings of the rows that come next are fetched.
  template <int Columns>
  static void correct(BlockRows<const float> from, const float* next, const float* factors,
                      RowSums<vectors_of<Columns>, chains>& sums) {
    sums.clear();
    for (int row = 0; row < D; ++row) {
      const vf factor = splat(factors[row]);
      for_vectors<Columns>(
          [&](int i, auto part) { sums.add(row, i, factor, load(from.at(row, i), part)); });
      for (int c = 0; c < fetched_before<Columns>; c += 16) prefetch(next + row * P + c);
    }
  }

  // Hardware foresees one pass over whole rows by itself.
  template <int Columns>
  static constexpr bool is_foreseen = !corrects && P <= Columns;
  template <int Columns>
  static constexpr int fetched_before = corrects && P > Columns ? Columns / 2 : 0;

  // A token: to = what it makes of the block. No token corrects what the last one leaves; it fetches
  // the rest of the block that comes next.
  template <int Columns, bool Last>
  [[gnu::always_inline]] static void advance_row(
      int row, BlockRows<const float> from, BlockRows<float> to, const float* next,
      const Factors& by, const vf (&taken)[vectors_of<Columns>],
      const vf (&removed)[vectors_of<Columns>], RowSums<vectors_of<Columns>, chains>& read,
      RowSums<vectors_of<Columns>, chains>& corrections) {
    const vf decay = splat(by.decay[ByKey ? row : 0]);
    const vf key = splat(by.k[row]), query = splat(by.q[row]);
    const vf removal = splat(rule == Rule::low_rank ? by.b[row] : 0.0f);
    const vf correction = splat(corrects && !Last ? by.corrected[row] : 0.0f);
    for_vectors<Columns>([&](int i, auto part) {
      vf v = decay * load(from.at(row, i), part);
      if constexpr (rule == Rule::low_rank) v = fma(removal, removed[i], v);
      v = fma(key, taken[i], v);
      store(to.at(row, i), v, part);
      read.add(row, i, query, v);
      if constexpr (corrects && !Last) corrections.add(row, i, correction, v);
    });
    if constexpr (Last && !is_foreseen<Columns>)
      for (int c = fetched_before<Columns>; c < Columns; c += 16) prefetch(next + row * P + c);
  }

  template <int Columns, bool Last>
  static void advance(BlockRows<const float> from, BlockRows<float> to, const float* next,
                      const Factors& by, const vf (&taken)[vectors_of<Columns>],
                      const vf (&removed)[vectors_of<Columns>],
                      RowSums<vectors_of<Columns>, chains>& read,
                      RowSums<vectors_of<Columns>, chains>& corrections) {
    read.clear();
    corrections.clear();
    constexpr int whole = D / chains * chains;
    for (int row = 0; row < whole; row += chains)
      for (int j = 0; j < chains; ++j)
        advance_row<Columns, Last>(row + j, from, to, next, by, taken, removed, read, corrections);
    for (int row = whole; row < D; ++row)
      advance_row<Columns, Last>(row, from, to, next, by, taken, removed, read, corrections);
  }

  // What a token brings to rows that it takes up, corrected, and what it removes.
  template <int Columns>
  void take(int token, int head, int column, float decay,
            const RowSums<vectors_of<Columns>, chains>& corrections,
            vf (&taken)[vectors_of<Columns>], vf (&removed)[vectors_of<Columns>]) const {
    for_vectors<Columns>([&](int i, auto part) {
      vf v = load(given.v[token] + head * P + column + i * lanes, part);
      removed[i] = zero();
      if constexpr (rule == Rule::delta) {
        const vf there = corrections.total(i);
        v = ByKey ? v - there : fma(splat(-decay), there, v);
      }
      if constexpr (rule == Rule::low_rank) removed[i] = zero() - corrections.total(i);
      if (given.beta.data != nullptr) v = v * splat(given.beta[token][head]);
      taken[i] = v;
    });
  }

  template <int Columns>
  void give(int token, int head, int column,
            const RowSums<vectors_of<Columns>, chains>& read) const {
    for_vectors<Columns>([&](int i, auto part) {
      const int c = head * P + column + i * lanes;
      vf v = read.total(i);
      if (given.skip != nullptr)
        v = fma(splat(given.skip[head]), load(given.v[token] + c, part), v);
      store(out[token] + c, v, part);
    });
  }

  // Some tokens pass over a block of a sequence.
  template <int Columns>
  [[gnu::noinline]] void run(Workspace& work, Range tokens, int head, int column, bool begins,
                             bool fetches, float* block, const float* next) const {
    constexpr int vectors = vectors_of<Columns>;
    const BlockRows<float> kept{block, P}, own{work.block, Block::columns};
    BlockRows<const float> from{block, P};
    if (begins) from = {work.zeros, 0};
    RowSums<vectors, chains> read, corrections;
    const bool alone = tokens.end - tokens.begin == 1;
    if constexpr (corrects)
      correct<Columns>(from, alone ? next : block, corrected(work, tokens.begin, 0, head),
                       corrections);
    for (int token = tokens.begin; token < tokens.end; ++token) {
      if (fetches && !alone) fetch(token + ahead, head);
      const int place = token - tokens.begin;
      const bool last = token + 1 == tokens.end;
      const float* decay = ByKey ? work.decay[place] : work.decay[0] + place;
      vf taken[vectors], removed[vectors];
      take<Columns>(token, head, column, decay[0], corrections, taken, removed);
      Factors by{decay, key(token, head), nullptr, given.q[token] + group_of(head) * D, nullptr};
      if constexpr (rule == Rule::low_rank) by.b = given.b[token] + head * D;
      if (last) {
        advance<Columns, true>(from, kept, next, by, taken, removed, read, corrections);
      } else {
        if constexpr (corrects) by.corrected = corrected(work, token + 1, place + 1, head);
        advance<Columns, false>(from, own, next, by, taken, removed, read, corrections);
        from = {own.data, own.stride};
      }
      give<Columns>(token, head, column, read);
    }
  }

  // A token that is alone waits for memory, which likes long rows.
  static int blocks_at_once(int block, int end, bool alone) {
    return alone && block + 2 <= end && (block + 2) * Block::columns <= P ? 2 : 1;
  }

  // Some blocks of a head, whose matrix lies at `whole`; `next` comes after them.
  void run(Workspace& work, int s, int head, Range parts, float* whole, const float* next) const {
    constexpr int columns = Block::columns;
    const int end = records.end(s);
    bool begins = records.begins(s);
    for (int token = records.first_row(s); token < end; token += most_tokens) {
      const Range tokens{token, token + most_tokens < end ? token + most_tokens : end};
      prepare(work, tokens, head);
      for (int b = parts.begin; b < parts.end;) {
        const int width = blocks_at_once(b, parts.end, end - records.first_row(s) == 1);
        const float* following = b + width < parts.end ? whole + (b + width) * columns : next;
        const auto over = [&](auto size) {
          run<size.value>(work, tokens, head, b * columns, begins, b == parts.begin,
                          whole + b * columns, following);
        };
        if constexpr (P >= 2 * columns)
          if (width == 2) over(Width<2 * columns>{});
        if constexpr (P >= columns)
          if (width == 1 && (b + 1) * columns <= P) over(Width<columns>{});
        if constexpr (P % columns != 0)
          if ((b + 1) * columns > P) over(Width<P % columns>{});
        b += width;
      }
      begins = false;
    }
  }

  // Some blocks of a sequence, counted through all heads.
  void run(Workspace& work, int s, Range parts) const {
    constexpr std::ptrdiff_t of_head = std::ptrdiff_t{D} * P;
    float* whole = records.record(state, s, Heads * of_head);
    const float* other = s + 1 < records.count ? records.record(state, s + 1, Heads * of_head) : whole;
    for (int b = parts.begin; b < parts.end;) {
      const int head = b / blocks, first = b % blocks;
      const int last = parts.end - b < blocks - first ? first + parts.end - b : blocks;
      b += last - first;
      const float* next = b < parts.end ? whole + (head + 1) * of_head : other;
      run(work, s, head, {first, last}, whole + head * of_head, next);
    }
  }
};

// state: [slots, Heads * D, P]
template <Rule rule, int Groups, int Heads, int D, int P, bool ByKey, class Out>
[[gnu::noinline, gnu::noipa]]
void recurrence(Team team, RecurrenceRows given, Records records, float* state, Rows<Out> out) {
  using Form = Recurrence<rule, Groups, Heads, D, P, ByKey, Out>;
  const Form form{given, records, state, out};
  auto& work = team.workspace<typename Form::Workspace>();
  for (float& v : work.zeros) v = 0.0f;
  deal_records(team, records, Heads * Form::blocks,
               [&](int s, Range parts) { form.run(work, s, parts); });
}

}  // namespace ingot
