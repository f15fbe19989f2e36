// Rows that look back at the last few of their sequence. A thread has columns of all rows.
#pragma once

#include "math.h"
#include "records.h"

namespace ingot {

// Calls body(columns) with those of a thread: whole lines of memory, but for the last ones.
template <int Columns, class Body>
inline void deal_columns(Team team, Body body) {
  constexpr int line = 16;
  const Range lines = share((Columns + line - 1) / line, team);
  const int end = lines.end * line;
  body(Range{lines.begin * line, end < Columns ? end : Columns});
}

// Calls body(column, part) for the vectors of a range.
template <class Body>
inline void for_range(Range columns, Body body) {
  int column = columns.begin;
  for (; column + lanes <= columns.end; column += lanes) body(column, Full{});
  if (column < columns.end) body(column, Part{columns.end - column});
}

// tail = the last Kept rows of what it was and the new rows
template <int Kept, class T>
inline void keep_tail(Range columns, Rows<const T> x, int first, int end, bool begins,
                      std::ptrdiff_t stride, float* tail) {
  const int count = end - first;
  for (int i = 0; i < Kept; ++i) {
    float* to = tail + i * stride;
    const int row = i + count - Kept;  // of the new ones
    for_range(columns, [&](int c, auto part) {
      const vf v = row >= 0 ? load(x[first + row] + c, part)
                   : begins ? zero()
                            : load(tail + (i + count) * stride + c, part);
      store(to + c, v, part);
    });
  }
}

// out[r] = x[r - 1] within a sequence; tail: [slots, Columns], the row before those of the step
template <int Columns, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void token_shift(Team team, Rows<const T> x, Records records, float* tail, Rows<Out> out) {
  deal_columns<Columns>(team, [&](Range columns) {
    for (int s = 0; s < records.count; ++s) {
      const int first = records.first_row(s), end = records.end(s);
      if (first == end) continue;
      float* kept = records.record(tail, s, Columns);
      for_range(columns, [&](int c, auto part) {
        store(out[first] + c, records.begins(s) ? zero() : load(kept + c, part), part);
      });
      for (int row = first + 1; row < end; ++row)
        for_range(columns, [&](int c, auto part) {
          store(out[row] + c, load(x[row - 1] + c, part), part);
        });
      keep_tail<1>(columns, x, first, end, records.begins(s), Columns, kept);
    }
  });
}

// out[r] = the sum of weight[j] x[r - (Taps - 1 - j)] within a sequence, plus the bias, then Kind of
// that; weight: [Taps, Columns]; tail: [slots, Taps - 1, Columns], the rows before those of the step
template <int Columns, int Taps, class Kind, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void short_conv(Team team, Rows<const T> x, const float* weight, const float* bias,
                Records records, float* tail, Rows<Out> out) {
  constexpr int kept_rows = Taps - 1;
  deal_columns<Columns>(team, [&](Range columns) {
    for (int s = 0; s < records.count; ++s) {
      const int first = records.first_row(s), end = records.end(s);
      if (first == end) continue;
      float* kept = records.record(tail, s, std::ptrdiff_t{kept_rows} * Columns);
      const auto finish = [&](int row, int c, vf sum, auto part) {
        if (bias != nullptr) sum = sum + load(bias + c, part);
        store(out[row] + c, Kind::of(sum), part);
      };
      for (int row = first; row < end && row < first + kept_rows; ++row)
        for_range(columns, [&](int c, auto part) {
          vf sum = zero();
          for (int j = 0; j < Taps; ++j) {
            const int from = row - first + j - kept_rows;  // of the new rows
            const vf v = from >= 0 ? load(x[first + from] + c, part)
                         : records.begins(s)
                             ? zero()
                             : load(kept + (from + kept_rows) * std::ptrdiff_t{Columns} + c, part);
            sum = fma(load(weight + j * Columns + c, part), v, sum);
          }
          finish(row, c, sum, part);
        });
      for (int row = first + kept_rows; row < end; ++row)
        for_range(columns, [&](int c, auto part) {
          vf sum = zero();
          for (int j = 0; j < Taps; ++j)
            sum = fma(load(weight + j * Columns + c, part),
                      load(x[row + j - kept_rows] + c, part), sum);
          finish(row, c, sum, part);
        });
      keep_tail<kept_rows>(columns, x, first, end, records.begins(s), Columns, kept);
    }
  });
}

}  // namespace ingot
