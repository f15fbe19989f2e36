// A stand-in for libcuda.so.1: memory of the device is that of the host, a launch is written down,
// and any call can be made to fail.
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char* failing = "";
static atomic_int spared;  // calls that go well before it fails
static int failing_code, capability_major = 9, capability_minor = 0, num_gpus = 1;
static atomic_int live, pinned, recorded, waited;  // threads share a driver
static int capturing, launches, replayed;
static unsigned last_grid[3], last_threads, last_shared;
static unsigned char last_parameters[4096];
static size_t last_size;
static int last_dependent;

void fake_reset(void) {
  failing = "";
  live = pinned = recorded = waited = 0;
  capturing = launches = replayed = 0;
  capability_major = 9, capability_minor = 0, num_gpus = 1;
}
void fake_fail(const char* name, int code) {
  failing = strdup(name);
  failing_code = code;
  spared = 0;
}
void fake_spare(int calls) { spared = calls; }
void fake_gpus(int count, int major, int minor) {
  num_gpus = count, capability_major = major, capability_minor = minor;
}
int fake_live(void) { return live; }
int fake_pinned(void) { return pinned; }
int fake_dependent(void) { return last_dependent; }
int fake_launches(void) { return launches; }
int fake_replayed(void) { return replayed; }
int fake_recorded(void) { return recorded; }
int fake_waited(void) { return waited; }
unsigned fake_grid(int dimension) { return last_grid[dimension]; }
unsigned fake_threads(void) { return last_threads; }
unsigned fake_shared(void) { return last_shared; }
size_t fake_parameters(unsigned char* out) {
  memcpy(out, last_parameters, last_size);
  return last_size;
}

#define CALL(name, ...)                                     \
  int name(__VA_ARGS__) {                                   \
    if (strcmp(failing, #name) == 0 && spared-- <= 0) return failing_code;
#define END \
  return 0; \
  }

CALL(cuInit, unsigned flags) END
CALL(cuDriverGetVersion, int* version) *version = 12040; END
CALL(cuDeviceGetCount, int* count) *count = num_gpus; END
CALL(cuDeviceGet, int* device, int number)
  if (number >= num_gpus) return 101;
  *device = number;
END
CALL(cuDeviceGetAttribute, int* value, int attribute, int device)
  *value = attribute == 75 ? capability_major : capability_minor;
END
CALL(cuDevicePrimaryCtxRetain, void** context, int device) *context = (void*)1, ++live; END
CALL(cuDevicePrimaryCtxRelease_v2, int device) --live; END
CALL(cuCtxSetCurrent, void* context) END
CALL(cuStreamCreate, void** stream, unsigned flags) *stream = (void*)2, ++live; END
CALL(cuStreamDestroy_v2, void* stream) --live; END
CALL(cuMemAlloc_v2, uint64_t* address, size_t size)
  *address = (uint64_t)aligned_alloc(256, (size + 255) / 256 * 256), ++live;
END
CALL(cuMemFree_v2, uint64_t address) free((void*)address), --live; END
CALL(cuMemAllocHost_v2, void** place, size_t size) *place = malloc(size), ++live, ++pinned; END
CALL(cuMemFreeHost, void* place) free(place), --live, --pinned; END
CALL(cuMemcpyHtoDAsync_v2, uint64_t to, const void* from, size_t size, void* stream)
  memcpy((void*)to, from, size);
END
CALL(cuMemcpyDtoHAsync_v2, void* to, uint64_t from, size_t size, void* stream)
  memcpy(to, (void*)from, size);
END
CALL(cuModuleLoadData, void** module, const void* image)
  if (memcmp(image, "\x7f" "ELF", 4) != 0) return 209;
  *module = (void*)3, ++live;
END
CALL(cuModuleUnload, void* module) --live; END
CALL(cuModuleGetFunction, void** function, void* module, const char* name)
  *function = strdup(name);
END
CALL(cuFuncSetAttribute, void* function, int attribute, int value)
  if (attribute != 8) return 1;
END
CALL(cuLaunchKernel, void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
     unsigned by, unsigned bz, unsigned shared, void* stream, void** parameters, void** extra)
  if (extra[0] != (void*)1 || extra[2] != (void*)2 || extra[4] != 0 || by != 1 || bz != 1) return 1;
  last_grid[0] = gx, last_grid[1] = gy, last_grid[2] = gz;
  last_threads = bx, last_shared = shared;
  last_size = *(size_t*)extra[3];
  memcpy(last_parameters, extra[1], last_size);
  last_dependent = 0;
  ++launches;
END
struct attribute {
  int id, padding, value[16];
};
struct config {
  unsigned grid[3], block[3], shared;
  void* stream;
  struct attribute* attributes;
  unsigned num_attributes;
};
CALL(cuLaunchKernelEx, struct config* config, void* function, void** parameters, void** extra)
  struct attribute* given = config->attributes;
  if (sizeof(struct attribute) != 72 || config->num_attributes != 1 || given->id != 6) return 1;
  if (config->stream != (void*)2 || !function || parameters) return 1;
  if (extra[0] != (void*)1 || extra[2] != (void*)2 || extra[4] != 0) return 1;
  if (config->block[1] != 1 || config->block[2] != 1) return 1;
  memcpy(last_grid, config->grid, sizeof last_grid);
  last_threads = config->block[0], last_shared = config->shared;
  last_size = *(size_t*)extra[3];
  memcpy(last_parameters, extra[1], last_size);
  last_dependent = given->value[0];
  ++launches;
END
CALL(cuStreamBeginCapture_v2, void* stream, int mode) capturing = 1; END
CALL(cuStreamEndCapture, void* stream, void** graph) *graph = (void*)4, capturing = 0, ++live; END
CALL(cuGraphInstantiateWithFlags, void** graph, void* recorded, uint64_t flags)
  *graph = (void*)5, ++live;
END
CALL(cuGraphDestroy, void* graph) --live; END
CALL(cuGraphExecDestroy, void* graph) --live; END
CALL(cuGraphLaunch, void* graph, void* stream) ++replayed; END
CALL(cuStreamSynchronize, void* stream) END
CALL(cuEventCreate, void** event, unsigned flags) *event = (void*)6, ++live; END
CALL(cuEventDestroy_v2, void* event) --live; END
CALL(cuEventRecord, void* event, void* stream) ++recorded; END
CALL(cuEventSynchronize, void* event) ++waited; END
CALL(cuMemGetInfo_v2, size_t* free, size_t* total) *free = *total = (size_t)1 << 30; END
int cuGetErrorName(int code, const char** text) {
  *text = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : 0;
  return code == 700 || code == 2 ? 0 : 1;
}
