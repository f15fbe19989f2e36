// How many threads a step is given.
//
// The threads of a step wait for one another dozens of times, so one that loses its processor to
// other work holds up all. On a busy machine fewer threads are then faster. Their number follows
// from what steps took: where threads were held up, a trial of fewer decides, and now and then a
// trial of more. A trial that loses is not repeated until its loss is a small part of the time.
//
// Steps of a large model are few and long, so what the system counts helps: the first steps have as
// many threads as there are free processors, and more are tried as soon as one more is free.
#pragma once

#include <climits>
#include <cstdint>

namespace ingot {

// Nanoseconds, by the clock of `nanoseconds()`.
struct StepTime {
  std::int64_t end;
  std::int64_t taken;
  std::int64_t waited;  // for threads that were held up, summed over those that waited
};

// For steps of about as many rows.
class TeamSize {
 public:
  explicit TeamSize(int most) : most_(most), size_(most) {}

  int value() const { return on_trial_ > 0 ? on_trial_ : size_; }

  // Before the first step, `free()` may say how many processors are free.
  template <class Free>
  void begin(Free free) {
    if (has_begun_ || most_ == 1) return;
    has_begun_ = true;
    const int found = free();
    if (found < most_) size_ = found;
  }

  // Learns from a step that had `value()` threads.
  template <class Free>
  void learn(StepTime step, Free free) {
    if (most_ == 1) return;
    (on_trial_ > 0 ? trial_ : usual_).add(step);
    if (on_trial_ > 0)
      judge(step.end);
    else
      watch(step, free);
  }

 private:
  // An epoch is long enough that the scheduler has given every thread its turn.
  static constexpr std::int64_t epoch_ns = 20'000'000;
  // Trials may take about 1/32 of the time.
  static constexpr double rest = 32;
  // More threads are tried so often although no processor seems free: the system counts work that
  // may be nobody's rival.
  static constexpr std::int64_t doubt_ns = 200 * epoch_ns;

  // What the last steps took, older ones counting less.
  struct Pace {
    double taken = 0, steps = 0;

    void add(StepTime step) {
      if (taken > 2 * epoch_ns) taken /= 2, steps /= 2;
      taken += static_cast<double>(step.taken);
      steps += 1;
    }
    double mean() const { return taken / steps; }
  };

  template <class Free>
  void watch(StepTime step, Free free) {
    taken_ += step.taken;
    waited_ += step.waited;
    if (taken_ < epoch_ns) return;
    held_up_ = waited_ * 8 > taken_ * size_ ? held_up_ + 1 : 0;
    taken_ = waited_ = 0;
    if (held_up_ > 1 && size_ > 1 && step.end >= fewer_from_)
      try_out((fewer_ > 1 ? fewer_ : size_) / 2);
    else if (size_ < most_ && step.end >= more_from_ && is_time_for_more(step, free()))
      try_out(size_ + (size_ + 2) / 3);
  }

  bool is_time_for_more(StepTime step, int free) {
    if (doubted_ == 0) doubted_ = step.end;
    const bool doubts = step.end >= doubted_ + doubt_ns;
    if (doubts) doubted_ = step.end;
    return doubts || free > size_;
  }

  void try_out(int size) {
    held_up_ = 0;
    on_trial_ = size < most_ ? size : most_;
    trial_ = Pace();
  }

  void judge(std::int64_t now) {
    if (trial_.taken < epoch_ns) return;
    const bool grows = on_trial_ > size_, wins = trial_.mean() < usual_.mean();
    const Pace &faster = wins ? trial_ : usual_, &slower = wins ? usual_ : trial_;
    const double loss = trial_.taken * (1 - faster.mean() / slower.mean());
    // After growing, the way back is open: the machine may just have been quiet for a moment.
    const std::int64_t later = now + static_cast<std::int64_t>(rest * loss);
    if (wins != grows)
      more_from_ = later;
    else if (!wins)
      fewer_from_ = later;
    fewer_ = wins || grows ? 0 : on_trial_;
    if (wins) size_ = on_trial_, usual_ = trial_;
    on_trial_ = 0;
  }

  int most_, size_;
  bool has_begun_ = false;
  int on_trial_ = 0;  // 0: none
  int fewer_ = 0;     // what lost the last trial of fewer; the next one tries still fewer
  Pace usual_, trial_;
  std::int64_t taken_ = 0, waited_ = 0;          // in this epoch
  int held_up_ = 0;                              // epochs in a row; one alone may be a hiccup
  std::int64_t fewer_from_ = 0, more_from_ = 0;  // when the next trial may begin
  std::int64_t doubted_ = 0;                     // when more was tried without a free processor
};

}  // namespace ingot
