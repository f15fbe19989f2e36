// A small vector for each channel that decays and takes up inputs, token by token (Mamba).
//
// Channels are the lanes of vectors. A unit of work is a few lines of channels of a sequence, whose
// vectors stay in the first level of cache while the tokens pass over them. Nearly all of its time
// goes into the exponentials, one for each element and token.
#pragma once

#include "records.h"
#include "recurrence_block.h"
#include "short_conv.h"

namespace ingot {

struct ScanRows {
  Rows<const float> x, dt, b, c;
  const float *rate, *skip;  // [D, Columns], [Columns]
};

template <int Columns, int D, class Out>
struct SelectiveScan {
  static constexpr int width = 32, blocks = (Columns + width - 1) / width;
  static constexpr int vectors = vectors_of<width>;
  static constexpr int alone = 1024;  // columns that the only token of a sequence passes over at once
  static constexpr int ahead = 8;  // tokens between the one whose rows are fetched and this

  struct Workspace {
    vf state[D][vectors], rate[D][vectors];
    float taken[alone], sum[alone];
  };

  const ScanRows& given;
  const Records& records;
  float* state;
  Rows<Out> out;

  static vf base2(vf rate) { return rate * splat(1.44269504f); }

  static vf advance(vf kept, vf dt, vf rate, vf taken, vf takes) {
    return fma(exp2(dt * rate), kept, taken * takes);
  }

  // All tokens of a sequence pass over a block.
  template <int Width>
  [[gnu::noinline]] void run(Workspace& work, int s, int column, float* kept) const {
    const bool begins = records.begins(s);
    for (int d = 0; d < D; ++d)
      for_vectors<Width>([&](int i, auto part) {
        const std::ptrdiff_t at = std::ptrdiff_t{d} * Columns + column + i * lanes;
        work.state[d][i] = begins ? zero() : load(kept + at, part);
        work.rate[d][i] = base2(load(given.rate + at, part));
      });
    for (int token = records.first_row(s); token < records.end(s); ++token) {
      const float *b = given.b[token], *c = given.c[token];
      vf dt[vectors], taken[vectors], sum[vectors];
      for (int i = 0; i < Width; i += 16) {
        prefetch(given.dt[token + ahead] + column + i);
        prefetch(given.x[token + ahead] + column + i);
      }
      for_vectors<Width>([&](int i, auto part) {
        const int at = column + i * lanes;
        dt[i] = load(given.dt[token] + at, part);
        const vf x = load(given.x[token] + at, part);
        taken[i] = dt[i] * x;
        sum[i] = load(given.skip + at, part) * x;
      });
      for (int d = 0; d < D; ++d) {
        const vf takes = splat(b[d]), reads = splat(c[d]);
        for_vectors<Width>([&](int i, auto) {
          const vf v = advance(work.state[d][i], dt[i], work.rate[d][i], taken[i], takes);
          work.state[d][i] = v;
          sum[i] = fma(reads, v, sum[i]);
        });
      }
      for_vectors<Width>([&](int i, auto part) {
        store(out[token] + column + i * lanes, sum[i], part);
      });
    }
    for (int d = 0; d < D; ++d)
      for_vectors<Width>([&](int i, auto part) {
        store(kept + std::ptrdiff_t{d} * Columns + column + i * lanes, work.state[d][i], part);
      });
  }

  // The only token of a sequence passes over columns in the order of memory.
  [[gnu::noinline]] void run_alone(Workspace& work, int s, Range columns, float* kept) const {
    const int token = records.first_row(s);
    const bool begins = records.begins(s);
    const float *dt = given.dt[token], *x = given.x[token];
    float *taken = work.taken - columns.begin, *sum = work.sum - columns.begin;
    for_range(columns, [&](int c, auto part) {
      const vf v = load(x + c, part);
      store(taken + c, load(dt + c, part) * v, part);
      store(sum + c, load(given.skip + c, part) * v, part);
    });
    for (int d = 0; d < D; ++d) {
      const vf takes = splat(given.b[token][d]), reads = splat(given.c[token][d]);
      const std::ptrdiff_t row = std::ptrdiff_t{d} * Columns;
      for_range(columns, [&](int c, auto part) {
        prefetch(kept + row + Columns + c);  // of the next row, which hardware does not foresee
        prefetch(given.rate + row + Columns + c);
        const vf before = begins ? zero() : load(kept + row + c, part);
        const vf rate = base2(load(given.rate + row + c, part));
        const vf v = advance(before, load(dt + c, part), rate, load(taken + c, part), takes);
        store(kept + row + c, v, part);
        store(sum + c, fma(reads, v, load(sum + c, part)), part);
      });
    }
    for_range(columns, [&](int c, auto part) {
      store(out[token] + c, load(sum + c, part), part);
    });
  }

  void run(Workspace& work, int s, Range parts) const {
    float* kept = records.record(state, s, std::ptrdiff_t{D} * Columns);
    if (records.end(s) - records.first_row(s) == 1) {
      const int last = parts.end * width, end = last < Columns ? last : Columns;
      for (int c = parts.begin * width; c < end; c += alone)
        run_alone(work, s, {c, c + alone < end ? c + alone : end}, kept);
      return;
    }
    constexpr int rest = Columns % width;
    for (int b = parts.begin; b < parts.end; ++b) {
      if (rest != 0 && b + 1 == blocks)
        run<rest == 0 ? width : rest>(work, s, b * width, kept);
      else if constexpr (Columns >= width)
        run<width>(work, s, b * width, kept);
    }
  }
};

// state: [slots, D, Columns]
template <int Columns, int D, class Out>
[[gnu::noinline, gnu::noipa]]
void selective_scan(Team team, ScanRows given, Records records, float* state, Rows<Out> out) {
  using Form = SelectiveScan<Columns, D, Out>;
  const Form form{given, records, state, out};
  auto& work = team.workspace<typename Form::Workspace>();
  deal_records(team, records, Form::blocks,
               [&](int s, Range parts) { form.run(work, s, parts); });
}

}  // namespace ingot
