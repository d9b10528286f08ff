// What the products with matrices in bfloat16 have in common. It stands before them, behind attention_math.cuh.

// Sixteen bytes of a matrix, which nobody reads a second time: they need no place in a multiprocessor's own cache. The read stays
// where it is written, before what it does not wait for.
__device__ __forceinline__ uint4 read_once(const uint4* from) {
  uint4 to;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w) : "l"(from));
  return to;
}

// The function of a gate: 1 is SiLU, 2 GELU, whose (1 + tanh(z)) / 2 is the sigmoid of 2 z.
template <int ACTIVATION>
__device__ __forceinline__ float activated(float x) {
  static_assert(ACTIVATION == 1 || ACTIVATION == 2);
  const float z = ACTIVATION == 1 ? x : 1.5957691216f * (x + 0.044715f * x * x * x);
  return x / (1.f + __expf(-z));
}
