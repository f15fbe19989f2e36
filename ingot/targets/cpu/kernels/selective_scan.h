// A small vector for each channel that decays and takes up inputs, token by token (Mamba).
//
// Channels are the lanes of vectors. A unit of work is a few lines of channels of a sequence, whose
// vectors stay in the first level of cache while the tokens pass over them. Nearly all of its time
// goes into the exponentials, one for each element and token.
#pragma once

#include "math.h"
#include "recurrence.h"

namespace ingot {

struct ScanRows {
  Rows<const float> x, dt, b, c;
  const float *rate, *skip;  // [D, Columns], [Columns]
};

template <int Columns, int D, class Out>
struct SelectiveScan {
  static constexpr int width = 32, blocks = (Columns + width - 1) / width;
  static constexpr int vectors = vectors_of<width>;
  static constexpr int ahead = 8;  // tokens whose rows are fetched

  struct Workspace {
    vf state[D][vectors], rate[D][vectors];
  };

  const ScanRows& given;
  const Records& records;
  float* state;
  Rows<Out> out;

  template <int Width>
  [[gnu::noinline]] void run(Workspace& work, int s, int column) const {
    float* kept = records.record(state, s, std::ptrdiff_t{D} * Columns) + column;
    const bool begins = records.begins(s);
    for (int d = 0; d < D; ++d)
      for_vectors<Width>([&](int i, auto part) {
        const std::ptrdiff_t at = std::ptrdiff_t{d} * Columns + i * lanes;
        work.state[d][i] = begins ? zero() : load(kept + at, part);
        work.rate[d][i] = load(given.rate + column + at, part) * splat(1.44269504f);  // to base 2
      });
    for (int token = records.first_row(s); token < records.end(s); ++token) {
      const float *b = given.b[token], *c = given.c[token];
      vf dt[vectors_of<Width>], taken[vectors_of<Width>], sum[vectors_of<Width>];
      for_vectors<Width>([&](int i, auto part) {
        dt[i] = load(given.dt[token] + column + i * lanes, part);
        const vf x = load(given.x[token] + column + i * lanes, part);
        taken[i] = dt[i] * x;
        sum[i] = load(given.skip + column + i * lanes, part) * x;
      });
      for (int d = 0; d < D; ++d) {
        const vf takes = splat(b[d]), reads = splat(c[d]);
        for_vectors<Width>([&](int i, auto) {
          const vf decay = exp2(dt[i] * work.rate[d][i]);
          const vf v = fma(decay, work.state[d][i], taken[i] * takes);
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
        store(kept + std::ptrdiff_t{d} * Columns + i * lanes, work.state[d][i], part);
      });
  }

  void run(Workspace& work, RecordUnit unit) const {
    constexpr int rest = Columns % width;
    if (rest != 0 && unit.head + 1 == blocks)
      run<rest == 0 ? width : rest>(work, unit.sequence, unit.head * width);
    else if constexpr (Columns >= width)
      run<width>(work, unit.sequence, unit.head * width);
  }
};

// state: [slots, D, Columns]
template <int Columns, int D, class Out>
[[gnu::noinline, gnu::noipa]]
void selective_scan(Team team, ScanRows given, Records records, float* state, Rows<Out> out) {
  using Form = SelectiveScan<Columns, D, Out>;
  const Form form{given, records, state, out};
  auto& work = team.workspace<typename Form::Workspace>();
  deal_records(team, records, Form::blocks, 1, [&](RecordUnit unit, RecordUnit) {
    form.run(work, unit);
  });
}

}  // namespace ingot
