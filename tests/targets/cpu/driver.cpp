// Runs one step of a generated unit on buffers of their exact sizes, read from a job file, once in this
// thread and once beside it, draws from its logits each time, and writes the arena and the caches back. Compiled together with the unit under a sanitizer, which
// then sees every read and write past a buffer's end, and within the holes that the job names.
//
//   driver JOB RESULT
//
// A job is 64-bit integers: threads, pages, rows, tokens, sequences, page table stride, logits, the
// vocabulary and by how many bytes the sampler's memory is too small; then the number of weights, of caches, of inputs and of holes, and the sizes of all buffers; then the
// holes, each the number of a buffer and where in it the hole begins and ends; then the buffers'
// bytes: weights, caches, arena, and the int32 inputs in the order of the program's spec.

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "abi.h"

extern "C" void* ingot_open(const ingot_model*);
extern "C" std::int32_t ingot_run(void*, const ingot_step*);
extern "C" void ingot_submit(void*, const ingot_step*);
extern "C" std::int32_t ingot_wait(void*);
extern "C" std::int64_t ingot_sampler_bytes(std::int32_t);
extern "C" void ingot_sample(void*, const ingot_sampling*);
extern "C" void ingot_close(void*);

namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "driver: %s\n", what);
  std::exit(2);
}

std::int64_t integer(std::FILE* file) {
  std::int64_t value = 0;
  require(std::fread(&value, sizeof value, 1, file) == 1, "short job");
  return value;
}

void* block(std::FILE* file, std::size_t bytes) {
  void* memory = nullptr;
  require(posix_memalign(&memory, 64, bytes) == 0, "out of memory");
  require(bytes == 0 || std::fread(memory, bytes, 1, file) == 1, "short job");
  return memory;
}

struct Hole {
  std::size_t buffer, begin, end;
};

// Draws from every row, the likeliest token from the even ones.
void draw(void* handle, const ingot_step& step, std::int32_t vocabulary, std::size_t bytes) {
  std::vector<ingot_draw> rows(static_cast<std::size_t>(step.num_rows));
  std::vector<std::int32_t> likeliest;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    float* logits = static_cast<float*>(step.outputs[0]) + i * static_cast<std::size_t>(vocabulary);
    likeliest.push_back(
        static_cast<std::int32_t>(std::max_element(logits, logits + vocabulary) - logits));
    rows[i].logits = logits;
    rows[i].scale = i % 2 == 0 ? 0.0f : 1.44f;
    rows[i].top_p = i % 3 == 0 ? 1.0 : 0.9;
    rows[i].top_k = i % 5 == 0 ? 0 : 7;
    rows[i].num_allowed = rows[i].num_logprobs = rows[i].given = -1;
  }
  void* memory = nullptr;
  require(posix_memalign(&memory, 64, bytes) == 0, "out of memory");
  const ingot_sampling sampling{rows.data(), memory, step.num_rows, vocabulary};
  ingot_sample(handle, &sampling);
  for (std::size_t i = 0; i < rows.size(); ++i)
    require(rows[i].status == 0 && (i % 2 == 1 || rows[i].token == likeliest[i]), "a wrong token");
  std::free(memory);
}

// The step is another's as soon as it was waited for.
std::int32_t run_beside(void* handle, ingot_step step) {
  ingot_submit(handle, &step);
  const std::int32_t code = ingot_wait(handle);
  step = {};
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 3, "usage: driver JOB RESULT");
  std::FILE* job = std::fopen(argv[1], "rb");
  require(job != nullptr, "no job");
  const auto threads = static_cast<std::int32_t>(integer(job));
  const auto pages = static_cast<std::int32_t>(integer(job));
  ingot_step step{};
  step.num_rows = static_cast<std::int32_t>(integer(job));
  step.num_tokens = static_cast<std::int32_t>(integer(job));
  step.num_seqs = static_cast<std::int32_t>(integer(job));
  step.page_table_stride = static_cast<std::int32_t>(integer(job));
  const auto logits = static_cast<std::size_t>(integer(job));
  const auto vocabulary = static_cast<std::int32_t>(integer(job));
  const auto too_few_bytes = integer(job);
  const auto num_weights = static_cast<std::size_t>(integer(job));
  const auto num_caches = static_cast<std::size_t>(integer(job));
  const auto num_inputs = static_cast<std::size_t>(integer(job));
  std::vector<Hole> holes(static_cast<std::size_t>(integer(job)));
  std::vector<std::size_t> sizes(num_weights + num_caches + 1 + num_inputs);
  for (auto& size : sizes) size = static_cast<std::size_t>(integer(job));
  for (auto& [buffer, begin, end] : holes)
    for (auto* each : {&buffer, &begin, &end}) *each = static_cast<std::size_t>(integer(job));
  std::vector<void*> blocks;
  for (const auto size : sizes) blocks.push_back(block(job, size));
  std::fclose(job);

  void** caches = blocks.data() + num_weights;
  void** inputs = caches + num_caches + 1;
  std::vector<float> results(logits);
  void* outputs[] = {results.data()};
  step.inputs = inputs;
  step.outputs = outputs;
  const ingot_model model{blocks.data(), caches, caches[num_caches], pages, threads};

  for (const auto& [buffer, begin, end] : holes)
    ASAN_POISON_MEMORY_REGION(static_cast<char*>(blocks[buffer]) + begin, end - begin);
  void* handle = ingot_open(&model);
  require(handle != nullptr, "ingot_open failed");
  const std::int64_t sampler_bytes = ingot_sampler_bytes(vocabulary) * threads - too_few_bytes;
  for (const bool beside : {false, true}) {
    const std::int32_t code = beside ? run_beside(handle, step) : ingot_run(handle, &step);
    require(code == 0, "a step failed");
    if (vocabulary > 0) draw(handle, step, vocabulary, static_cast<std::size_t>(sampler_bytes));
  }
  ingot_close(handle);
  for (std::size_t i = 0; i < blocks.size(); ++i) ASAN_UNPOISON_MEMORY_REGION(blocks[i], sizes[i]);

  std::FILE* out = std::fopen(argv[2], "wb");
  require(out != nullptr, "no result file");
  for (std::size_t i = num_weights; i <= num_weights + num_caches; ++i)
    std::fwrite(blocks[i], sizes[i], 1, out);
  std::fclose(out);
  for (void* memory : blocks) std::free(memory);
  return 0;
}
