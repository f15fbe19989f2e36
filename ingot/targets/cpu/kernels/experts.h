// The products of experts: rows are multiplied with the few matrices of a stack that they picked.
//
// A thread sorts the pairs of rows and experts by expert, gathers the rows of one expert, and
// multiplies them as a linear does. So an expert's panels are read once for all rows that picked
// it, and the bits of a row depend on no other. Work is dealt in tickets: of an expert's columns in
// expert_gate, and in expert_sum of columns of the result, whose thread adds up all experts in
// ascending order.
#pragma once

#include "expert_rows.h"
#include "tickets.h"

namespace ingot {

inline constexpr int jobs_a_thread = 8;     // that make it worthwhile to deal them whole
inline constexpr int tickets_a_thread = 2;  // of expert_sum; each gathers the rows of all experts

// What becomes of the products with the two halves of a matrix: one value of both, or two values.
template <class Activation>
struct Gated {
  static constexpr int values = 1;
  static vf of(vf gate, vf up, float) { return Activation::of(gate) * up; }
};

template <class Activation>
struct Alone {
  static constexpr int values = 2;
  static vf of(vf up) { return Activation::of(up); }
};

struct ClampedGate {
  static constexpr int values = 1;
  static vf of(vf gate, vf up, float limit) {
    const vf low = min(splat(limit), gate);
    return (clamp(up, -limit, limit) + splat(1.0f)) * (low * sigmoid(splat(1.702f) * low));
  }
};

// Adds a vector to sums of `count` columns.
inline void add_vector(const float* bias, int rows, int count, Rows<float> sums) {
  for (int c = 0; c < count; c += lanes) {
    const vf value = load(bias + c, Part{count - c < lanes ? count - c : lanes});
    for (int r = 0; r < rows; ++r) store(sums[r] + c, load(sums[r] + c) + value);
  }
}

// Inner values as they are; a row for each pair.
template <class Out>
struct StoreInner {
  static constexpr int least_columns = 1;
  Rows<Out> out;

  void take(int pair, int column, int count, const float* values) const {
    for (int c = 0; c < count; c += lanes)
      store(out[pair] + column + c, load(values + c), Part{count - c < lanes ? count - c : lanes});
  }
};

// The same, rounded to integers in groups, of which the last has what is left.
template <int group, int Inner, class V>
struct RoundInner {
  static constexpr int least_columns = group, blocks = (Inner + group - 1) / group;
  Rows<V> values;
  Rows<float> scales;

  void take(int pair, int column, int count, const float* from) const {
    for (int c = 0; c < count; c += group) {
      const auto to = integer_row(values, pair).from(column + c);
      float& scale = scales[pair][(column + c) / group];
      if (Inner % group == 0 || c + group <= count)
        scale = quantize_group<group>(from + c, to);
      else
        scale = quantize_group<Inner % group == 0 ? group : Inner % group>(from + c, to);
    }
  }
};

// out[pair] = gate of x[row] times the two halves of the expert's matrix, or the activation of each
template <class Gate, class Half, int Experts, int Picks, std::ptrdiff_t stride, class Out>
class GateProduct {
 public:
  using Source = typename Half::Source;
  // Columns of a half that are gated together: as many as `Out` takes at least.
  static constexpr int panels =
      Out::least_columns > Half::columns ? Out::least_columns / Half::columns : 1;
  static constexpr int columns = panels * Half::columns;
  static constexpr int units = (Half::outputs + columns - 1) / columns;
  using Memory = JobMemory<Half, Experts, Picks, 2 * columns>;
  using Lists = decltype(Memory::lists);

  Stack<Half, stride> stack;
  Source x;
  Rows<const float> shares;
  const float* bias;
  float limit;
  Out out;

  void run(Slice slice) const {
    auto& memory = slice.team.large_workspace<Memory>();
    const int rows = slice.rows.end - slice.rows.begin;
    const int blocks = (rows + Lists::most_rows - 1) / Lists::most_rows;
    if (blocks == 1) memory.lists.fill(shares, slice.rows);
    const bool whole = blocks > 1 || memory.lists.num_jobs() >= jobs_a_thread * slice.team.size;
    const int jobs = blocks > 1 ? Lists::most_jobs : memory.lists.num_jobs();
    const int chunks = whole ? 1 : units, tickets = (jobs > 0 ? jobs : 1) * chunks;
    int held_block = blocks > 1 ? -1 : 0, held_job = -1;
    deal(slice.team, stack.data, blocks * tickets, [&](int ticket, int following) {
      const int block = ticket / tickets, job = ticket % tickets / chunks;
      if (block != held_block) {
        const int begin = slice.rows.begin + block * Lists::most_rows;
        const int end = begin + Lists::most_rows;
        memory.lists.fill(shares, {begin, end < slice.rows.end ? end : slice.rows.end});
        held_block = block, held_job = -1;
      }
      if (ticket % tickets == 0) clear_lacking(memory.lists);
      if (job >= memory.lists.num_jobs()) return;
      if (job != held_job) memory.gather(x, memory.lists.job(job), Picks);
      held_job = job;
      const int first = whole ? 0 : ticket % chunks, last = whole ? units : first + 1;
      const int next_job = following % tickets / chunks;
      const bool known = following / tickets == block && next_job < memory.lists.num_jobs();
      const Job& mine = memory.lists.job(job);
      const char* next = known ? place(memory.lists.job(next_job).expert, following % chunks)
                               : place(mine.expert, first);
      for (int u = first; u < last; ++u)
        compute(slice.team, memory, mine, u, u + 1 < last ? place(mine.expert, u + 1) : next);
    });
  }

 private:
  const char* place(int expert, int unit) const {
    return Half::unit(stack.half(expert, 0), unit * panels);
  }

  void compute(Team team, Memory& memory, const Job& job, int unit, const char* next) const {
    const int column = unit * columns, left = Half::outputs - column;
    const int count = left < columns ? left : columns;
    const int first = unit * panels, last = first + (count + Half::columns - 1) / Half::columns;
    const Rows<float> sums = memory.all_sums();
    for (int which = 0; which < 2; ++which) {
      const char* half = stack.half(job.expert, which);
      const char* after = which == 0 ? Half::unit(stack.half(job.expert, 1), first) : next;
      const Rows<float> part{sums.data + which * columns, sums.stride};
      for (int p = first; p < last; ++p)
        Half::product(team, memory.rows, job.count, half, p,
                      p + 1 < last ? Half::unit(half, p + 1) : after,
                      {part.data + (p - first) * Half::columns, part.stride});
      if (bias != nullptr)
        add_vector(bias + (2 * job.expert + which) * Half::outputs + column, job.count, count,
                   part);
    }
    const int* sorted = memory.lists.pairs(job);
    for (int r = 0; r < job.count; ++r) {
      float* made = sums[r];
      if constexpr (Gate::values == 1) {
        for (int c = 0; c < count; c += lanes)
          store(made + c, Gate::of(load(made + c), load(made + columns + c), limit));
        out.take(sorted[r], column, count, made);
      } else {
        for (int which = 0; which < 2; ++which, made += columns) {
          for (int c = 0; c < count; c += lanes) store(made + c, Gate::of(load(made + c)));
          out.take(sorted[r], which * Half::outputs + column, count, made);
        }
      }
    }
  }

  void clear_lacking(const Lists& lists) const {
    alignas(64) static constexpr float zeros[columns + lanes] = {};
    lists.for_lacking([&](int pair) {
      for (int which = 0; which < Gate::values; ++which)
        for (int column = 0; column < Half::outputs; column += columns) {
          const int left = Half::outputs - column;
          out.take(pair, which * Half::outputs + column, left < columns ? left : columns, zeros);
        }
    });
  }
};

// out[row] = the sum over its picks of share * (the expert's matrix times x[pair] + bias)
template <class Half, int Experts, int Picks, std::ptrdiff_t stride>
class SumProduct {
 public:
  using Source = typename Half::Source;
  static constexpr int units = 2 * Half::count;
  using Memory = JobMemory<Half, Experts, Picks, Half::columns>;
  using Lists = decltype(Memory::lists);

  Stack<Half, stride> stack;
  Source x;
  Rows<const float> shares;
  const float* bias;
  Rows<float> out;

  void run(Slice slice) const {
    auto& memory = slice.team.large_workspace<Memory>();
    const int rows = slice.rows.end - slice.rows.begin;
    const bool whole = rows <= Lists::most_rows;
    if (whole) memory.lists.fill(shares, slice.rows);
    const int fewest = slice.team.size * tickets_a_thread;
    const int each = (units + fewest - 1) / fewest, tickets = (units + each - 1) / each;
    deal(slice.team, stack.data, tickets, [&](int ticket, int following) {
      const Range mine{ticket * each, units < (ticket + 1) * each ? units : (ticket + 1) * each};
      const int next = (following < tickets ? following : ticket) * each;
      for (int begin = slice.rows.begin; begin < slice.rows.end; begin += Lists::most_rows) {
        const int end = begin + Lists::most_rows;
        const Range part{begin, end < slice.rows.end ? end : slice.rows.end};
        if (!whole) memory.lists.fill(shares, part);
        compute(slice.team, memory, part, mine, next);
      }
    });
  }

 private:
  static int column_of(int unit) {
    return unit / Half::count * Half::outputs + unit % Half::count * Half::columns;
  }
  static int width_of(int unit) {
    const int left = Half::outputs - unit % Half::count * Half::columns;
    return left < Half::columns ? left : Half::columns;
  }
  const char* place(int expert, int unit) const {
    return Half::unit(stack.half(expert, unit / Half::count), unit % Half::count);
  }

  void compute(Team team, Memory& memory, Range rows, Range mine, int next_unit) const {
    for (int row = rows.begin; row < rows.end; ++row)
      for (int u = mine.begin; u < mine.end; ++u)
        std::memset(out[row] + column_of(u), 0, width_of(u) * sizeof(float));
    const Lists& lists = memory.lists;
    for (int j = 0; j < lists.num_jobs(); ++j) {
      const Job& job = lists.job(j);
      memory.gather(x, job, 1);
      const bool last = j + 1 == lists.num_jobs();
      const char* next = place(lists.job(last ? 0 : j + 1).expert, last ? next_unit : mine.begin);
      for (int u = mine.begin; u < mine.end; ++u) {
        const Rows<float> sums = memory.all_sums();
        Half::product(team, memory.rows, job.count, stack.half(job.expert, u / Half::count),
                      u % Half::count, u + 1 < mine.end ? place(job.expert, u + 1) : next, sums);
        add(lists, job, u, sums);
      }
    }
  }

  void add(const Lists& lists, const Job& job, int unit, Rows<float> sums) const {
    const int column = column_of(unit), count = width_of(unit);
    if (bias != nullptr)
      add_vector(bias + static_cast<std::ptrdiff_t>(job.expert) * 2 * Half::outputs + column,
               job.count, count, sums);
    for (int r = 0; r < job.count; ++r) {
      const int row = lists.pairs(job)[r] / Picks;
      const vf share = splat(shares[row][job.expert]);
      float* to = out[row] + column;
      for (int c = 0; c < count; c += lanes) {
        const Part part{count - c < lanes ? count - c : lanes};
        store(to + c, fma(share, load(sums[r] + c), load(to + c, part)), part);
      }
    }
  }
};

template <class Gate, class T, class Out, int Experts, int Picks, int Inputs, int Inner,
          std::ptrdiff_t stride>
[[gnu::noinline, gnu::noipa]]
void expert_gate(Slice slice, Rows<const T> x, Rows<const float> shares, const T* weight,
                 const float* bias, float limit, Rows<Out> out) {
  using Half = PlainHalf<T, Inputs, Inner>;
  const GateProduct<Gate, Half, Experts, Picks, stride, StoreInner<Out>> product{
      {reinterpret_cast<const char*>(weight)}, {x}, shares, bias, limit,
      {{out.data, Gate::values * Inner}}};
  product.run(slice);
}

template <class T, int Experts, int Picks, int Inputs, int Outputs, std::ptrdiff_t stride>
[[gnu::noinline, gnu::noipa]]
void expert_sum(Slice slice, Rows<const T> x, Rows<const float> shares, const T* weight,
                const float* bias, Rows<float> out) {
  using Half = PlainHalf<T, Inputs, Outputs / 2>;
  const SumProduct<Half, Experts, Picks, stride> product{
      {reinterpret_cast<const char*>(weight)}, {{x.data, Inputs}}, shares, bias, out};
  product.run(slice);
}

}  // namespace ingot
