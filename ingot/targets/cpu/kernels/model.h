// An open model: its buffers and its threads, behind the C interface.
#pragma once

#include <cstdlib>

#include "amx.h"
#include "background.h"
#include "host_load.h"
#include "pool.h"
#include "sampler.h"
#include "step.h"
#include "team_size.h"

namespace ingot {

inline constexpr std::int32_t invalid_step = -1;

// How long a caller waits awake for a step beside it, and the step's thread for the next one. A
// step of a small model is over in that time. In a longer one a wake-up no longer counts.
inline constexpr std::int64_t awake_ns = 300'000;

// Numbers of the same magnitude differ by less than a factor of two.
inline constexpr int magnitudes = 33;
inline int magnitude(std::int32_t count) { return count > 0 ? 32 - __builtin_clz(count) : 0; }

class Model {
 public:
  // Copies the tables of pointers, so that the caller may free them.
  static Model* open(const ingot_model& buffers) {
    if (buffers.num_threads < 1 || !amx::allowed()) return nullptr;
    auto* model = static_cast<Model*>(std::calloc(1, sizeof(Model)));
    if (model == nullptr) return nullptr;
    const int maxima = known_rows * (num_blocks(generated.vocabulary) + 1);
    model->weights_ = copied(buffers.weights, generated.num_weights);
    model->caches_ = copied(buffers.caches, generated.num_caches);
    model->head_maxima_ = array<float>(maxima);
    model->others_ = OtherArenas::reserve(buffers.num_threads - 1, generated.arena_bytes);
    model->memory_ = {model->weights_, model->caches_, static_cast<char*>(buffers.arena),
                      model->others_, model->head_maxima_};
    model->watches_host_ = buffers.watches_host != 0;
    model->were_free_ = model->free();
    model->pool_ = Pool::open(buffers.num_threads, run_on_thread);
    for (TeamSize& size : model->step_sizes_) size = TeamSize(buffers.num_threads);
    for (TeamSize& overlap : model->overlaps_) overlap = TeamSize(2);
    model->sample_size_ = TeamSize(buffers.num_threads);
    if (model->has_tables() && model->pool_ != nullptr)
      model->background_ = Background::open(run_submitted, model,
                                            patience(buffers.num_threads + 1, awake_ns));
    if (model->background_ != nullptr) return model;
    model->close();
    return nullptr;
  }

  // If `times` is given, it gets the nanoseconds that each kernel took on the first thread, and, in
  // its last entry, those of all else: waking the threads and waiting for them at the end. The
  // watcher is asked on the first thread alone, so a model that has one has one thread.
  std::int32_t run(const ingot_step& step, std::int64_t* times = nullptr,
                   Watcher watcher = nullptr) {
    if (step.num_tokens < 0 || step.num_seqs < 0 || step.num_rows < 0) return invalid_step;
    Clock clock(times, generated.num_kernels, watcher);
    const Context context{&memory_, &step, &clock, nullptr, {}};
    known_.rows = 0;
    run_team(context, step_sizes_[magnitude(step.num_tokens)]);
    clock.mark(generated.num_kernels);
    const int vocabulary = generated.vocabulary;
    if (vocabulary > 0 && step.num_rows <= known_rows)
      known_ = {output<float>(step, 0), step.num_rows, vocabulary, head_maxima_};
    return 0;
  }

  // Begins a step in a thread beside the caller's, which is the first of the team, or leaves it to
  // `wait` where two threads hold each other up. The step must live, and nothing else may run,
  // until `wait` has returned.
  void submit(const ingot_step& step) {
    submitted_ = &step;
    submitted_at_ = nanoseconds();
    is_beside_ = overlap().value() > 1;
    if (is_beside_) background_->submit();
  }

  // Waits for that step, and returns what `run` would.
  std::int32_t wait() {
    const std::int64_t prepared = nanoseconds() - submitted_at_;
    if (is_beside_)
      background_->wait();
    else
      code_ = run(*submitted_);
    const std::int64_t end = nanoseconds(), taken = end - submitted_at_;
    const std::int64_t needed = prepared > computed_ ? prepared : computed_;
    overlap().learn({end, taken, is_beside_ ? taken - needed : 0}, [] { return INT_MAX; });
    return code_;
  }

  // Draws from rows of logits. For a few rows, waking the threads would take longer than drawing.
  void sample(const ingot_sampling& sampling) {
    const KnownRows known = known_;
    known_.rows = 0;  // edits change them
    if (sampling.num_rows <= known_rows) return sample_rows(sampling, {0, 1, nullptr}, known);
    const Context context{&memory_, nullptr, nullptr, &sampling, known};
    run_team(context, sample_size_);
  }

  // Waits for a step that was begun.
  void close() {
    if (background_ != nullptr) background_->close();
    if (pool_ != nullptr) pool_->close();
    others_.free();
    std::free(head_maxima_);
    std::free(caches_);
    std::free(weights_);
    std::free(this);
  }

 private:
  struct Context {
    const Memory* memory;
    const ingot_step* step;
    Clock* clock;
    const ingot_sampling* sampling;
    KnownRows known;
  };

  // Runs on as many threads as serve it best, and learns from that.
  void run_team(const Context& context, TeamSize& size) {
    const std::int64_t begin = nanoseconds();
    size.begin([this] { return free() > were_free_ ? free() : were_free_; });
    const std::int64_t waited = pool_->run(&context, size.value());
    const std::int64_t end = nanoseconds();
    size.learn({end, end - begin, waited}, [this] { return free(); });
  }

  int free() const { return watches_host_ ? free_processors() : INT_MAX; }

  // Whether the caller and the step share the work as two threads, or one does all.
  TeamSize& overlap() { return overlaps_[magnitude(submitted_->num_tokens)]; }

  static void run_submitted(void* model) {
    auto& self = *static_cast<Model*>(model);
    const std::int64_t begin = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    self.code_ = self.run(*self.submitted_);
    self.computed_ = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - begin;
  }

  static void run_on_thread(const void* argument, Team team, Barrier& barrier) {
    const auto& context = *static_cast<const Context*>(argument);
    if (context.sampling != nullptr) return sample_rows(*context.sampling, team, context.known);
    Clock off(nullptr, generated.num_kernels);
    Clock& clock = team.rank == 0 ? *context.clock : off;
    generated.run(*context.memory, *context.step, team, barrier, clock);
    amx::release();
  }

  // An array of zeros; null if memory is short.
  template <class T>
  static T* array(int count) {
    return static_cast<T*>(std::calloc(static_cast<std::size_t>(count) + 1, sizeof(T)));
  }
  template <class T>
  static T* copied(const T* from, int count) {
    T* to = array<T>(count);
    for (int i = 0; to != nullptr && i < count; ++i) to[i] = from[i];
    return to;
  }
  bool has_tables() const {
    return weights_ != nullptr && caches_ != nullptr && head_maxima_ != nullptr;
  }

  const void** weights_;
  void** caches_;
  float* head_maxima_;
  KnownRows known_;
  OtherArenas others_;
  Memory memory_;
  bool watches_host_;
  int were_free_;  // processors, when the model was opened
  Pool* pool_;
  TeamSize step_sizes_[magnitudes];  // for each magnitude of the number of tokens
  TeamSize overlaps_[magnitudes];
  TeamSize sample_size_;
  Background* background_;
  const ingot_step* submitted_;
  std::int64_t submitted_at_;
  bool is_beside_;
  std::int64_t computed_;  // nanoseconds of processor time that the step beside the caller took
  std::int32_t code_;
};

}  // namespace ingot
