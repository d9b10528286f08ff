/* mlx-rs seeds its random state from this macOS clock, so off the Mac the symbol must exist: nanoseconds of the monotonic clock. */
#include <stdint.h>
#include <time.h>

uint64_t mach_approximate_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
