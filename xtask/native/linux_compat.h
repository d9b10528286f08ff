/* What mlx-c takes for granted on a Mac and Debian 12 on x86-64 lacks: std::format (gcc 12) and the Arm half-precision types. */
#ifndef CAIRN_LINUX_COMPAT_H
#define CAIRN_LINUX_COMPAT_H
#include <stdint.h>

/* mlx-c's own half.h defines these types only on Arm; its include guard is defined here, so that it does not define them again. */
#define MLX_HALF_H
#define HAS_FLOAT16
#define HAS_BFLOAT16

#ifdef __cplusplus
#include <fmt/format.h>
namespace std {
using fmt::format;
}
#endif

/* Structs of 16 bits. mlx-c only passes them by value. */
typedef struct {
  uint16_t bits;
} float16_t;
typedef struct {
  uint16_t bits;
} bfloat16_t;
#endif
