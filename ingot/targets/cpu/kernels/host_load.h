// How busy the host is, as the system counts it.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>

namespace ingot {

// The threads that run or wait for a processor, of a text as in /proc/loadavg: "0.52 0.41 0.30
// 3/250 4711" has 3. 0 if there is no such number.
inline int running_threads(const char* text) {
  const char* slash = std::strchr(text, '/');
  if (slash == nullptr) return 0;
  const char* begin = slash;
  while (begin > text && begin[-1] >= '0' && begin[-1] <= '9') --begin;
  return slash - begin < 9 ? std::atoi(begin) : 0;
}

inline int running_threads() {
  char text[128] = {};
  const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  return size > 0 ? running_threads(text) : 0;
}

// How many processors no thread runs on, where so many run; the caller's is free for the caller.
// INT_MAX if nobody knows: where a process may not use all processors, the others may run elsewhere.
inline int free_processors(int running) {
  cpu_set_t cpus;
  if (running < 1 || sched_getaffinity(0, sizeof cpus, &cpus) != 0) return INT_MAX;
  const long processors = sysconf(_SC_NPROCESSORS_ONLN), left = processors - running + 1;
  if (CPU_COUNT(&cpus) < processors) return INT_MAX;
  return left > 1 ? static_cast<int>(left) : 1;
}

inline int free_processors() { return free_processors(running_threads()); }

}  // namespace ingot
