// What products have in common: how matrices are read, and tensor cores. It stands before them, behind attention_math.cuh.

// Sixteen bytes of a matrix, which nobody reads a second time: they need no place in a multiprocessor's own cache, and
// what stands beside them in 128 bytes is read next. The read stays where it is written, before what it does not wait for.
__device__ __forceinline__ uint4 read_once(const uint4* from) {
  uint4 to;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w) : "l"(from));
  return to;
}

// The function of a gate: 1 is SiLU, 2 GELU, whose (1 + tanh(z)) / 2 is the sigmoid of 2 z.
template <int ACTIVATION>
__device__ __forceinline__ float activated(float x) {
  static_assert(ACTIVATION == 1 || ACTIVATION == 2);
  const float z = ACTIVATION == 1 ? x : 1.5957691216f * (x + 0.044715f * x * x * x);
  return x / (1.f + __expf(-z));
}

// Two packed numbers of four bits, `at` and the fourth behind it, as 128 more in bfloat16: a number in the low bits of 128's mantissa.
// That is (word >> 4 at) & 0x000f000f | 0x43004300, the last two in one instruction.
__device__ __forceinline__ uint32_t raised_pair(uint32_t word, int at) {
  uint32_t raised;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(raised) : "r"(word >> (4 * at)), "r"(0x000f000fu), "r"(0x43004300u));
  return raised;
}

// Sixteen lines of a matrix times eight columns, on a tensor core. Of each lane: the numbers 2 p and 2 p + 1, then 2 p + 8 and 2 p + 9, of
// line l and, between those, of line l + 8, and of column l, where l is a quarter of the lane and p the rest. The sums are those of
// lines l and l + 8 with columns 2 p and 2 p + 1.
__device__ __forceinline__ void multiply_add(float (&sums)[4], const uint32_t (&lines)[4], const uint32_t (&column)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(lines[0]), "r"(lines[1]), "r"(lines[2]), "r"(lines[3]), "r"(column[0]), "r"(column[1]));
}
