/* Fails the n-th request for memory or a thread. What counts is what kernels ask the C library for,
 * what it asks for on their behalf, and every thread that anybody starts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_int armed, count, failing;
static _Thread_local int on_behalf, looking;

/* From here on, the n-th call fails; 0: none. */
void fail_call(int n) {
  count = 0, failing = n;
  armed = 1;
}

/* How many calls there were. */
int calls(void) {
  armed = 0;
  return count;
}

static int is_kernels(void *caller) {
  Dl_info info;
  looking = 1; /* dladdr may allocate itself */
  int found = dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "/fd/");
  looking = 0;
  return found;
}

static int fails(void *caller, int always) {
  if (!armed || looking) return 0;
  if (!always && !on_behalf && !is_kernels(caller)) return 0;
  return atomic_fetch_add(&count, 1) + 1 == failing;
}

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_memalign(size_t, size_t);

void *malloc(size_t size) {
  if (fails(__builtin_return_address(0), 0)) return errno = ENOMEM, NULL;
  return __libc_malloc(size);
}

void *calloc(size_t number, size_t size) {
  if (fails(__builtin_return_address(0), 0)) return errno = ENOMEM, NULL;
  return __libc_calloc(number, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  if (fails(__builtin_return_address(0), 0)) return errno = ENOMEM, NULL;
  return __libc_memalign(alignment, size);
}

void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset) {
  static void *(*real)(void *, size_t, int, int, int, off_t);
  if (fails(__builtin_return_address(0), 0)) return errno = ENOMEM, MAP_FAILED;
  if (!real) real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
  return real(at, size, prot, flags, fd, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (fails(NULL, 1)) return EAGAIN;
  if (!real)
    real = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(
        RTLD_NEXT, "pthread_create");
  on_behalf = 1;
  int failed = real(thread, attributes, run, argument);
  on_behalf = 0;
  return failed;
}
