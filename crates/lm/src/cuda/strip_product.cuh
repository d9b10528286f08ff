// Products of 4-bit matrices with one vector, on tensor cores. It stands before the kernels that multiply so, behind
// matrix_math.cuh.
//
// A strip is 16 rows of a matrix, and a chunk 128 numbers of each of them. For a chunk a lane of a warp reads 32 numbers of the row lane / 4
// and of the row 8 behind it, from the number lane % 4 * 32 on.
//
// Tensor cores multiply packed numbers as 128 + q, see raised_pair, without loss, with the vector's numbers in that of NUM_COLUMNS columns
// which stands for their group, and with zeros in the others. So the sum of each group is in a column of its own, and gets its scale and bias
// there. What the 128 add is taken away with the bias.
constexpr int CHUNK = 128;
constexpr int NUM_COLUMNS = 8;

// Adds to sums what a chunk's numbers of rows lane / 4 (upper) and 8 behind it (lower) are times the 32 of the vector, which begin at
// vector; zeros where this lane's column stands for another group. sums[2 half + column] is that of one of two rows and two columns.
__device__ __forceinline__ void add_chunk(float (&sums)[4], uint4 upper, uint4 lower, const uint4* vector) {
  #pragma unroll
  for (int part = 0; part < 4; ++part) {
    const uint4 numbers = vector[part];
    const uint32_t high = part == 0 ? upper.x : part == 1 ? upper.y : part == 2 ? upper.z : upper.w;
    const uint32_t low = part == 0 ? lower.x : part == 1 ? lower.y : part == 2 ? lower.z : lower.w;
    const uint32_t first[4] = {raised_pair(high, 0), raised_pair(low, 0), raised_pair(high, 1), raised_pair(low, 1)};
    const uint32_t second[4] = {raised_pair(high, 2), raised_pair(low, 2), raised_pair(high, 3), raised_pair(low, 3)};
    multiply_add(sums, first, {numbers.x, numbers.y});
    multiply_add(sums, second, {numbers.z, numbers.w});
  }
}

// The sum of a group's products, of which `sum` has 128 too much for each, from the group's scale and bias and the total of its numbers.
__device__ __forceinline__ float scaled(float sum, Value scale, Value bias, float total) {
  const float factor = __bfloat162float(scale);
  return factor * sum + (__bfloat162float(bias) - 128.f * factor) * total;
}

// A block's threads move a vector of K numbers to shared memory, normalized if NORM with a norm's weights: eight numbers as pairs of one and
// the fourth behind it, as add_chunk masks packed ones. numbers_of(i, to) gives its numbers 8 i to 8 i + 7. totals are those of groups.
template <int K, int GROUP, int THREADS, bool NORM, typename NumbersOf>
__device__ __forceinline__ void stage(uint4* staged, float* totals, const Value* norm, float eps, NumbersOf numbers_of) {
  constexpr int VECTORS = K / 8;
  constexpr int EACH = (VECTORS + THREADS - 1) / THREADS;
  constexpr int WARPS = THREADS / 32;
  __shared__ float squares[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Zeros where there is nothing to read: in a loop registers would otherwise be kept for what they had the last time.
  float numbers[EACH][8] = {};
  uint4 raw_weights[EACH] = {};
  float square = 0.f;
  #pragma unroll
  for (int item = 0; item < EACH; ++item) {
    const int i = threadIdx.x + item * THREADS;
    if (i < VECTORS) {
      if constexpr (NORM) raw_weights[item] = __ldg(reinterpret_cast<const uint4*>(norm) + i);
      numbers_of(i, numbers[item]);
      #pragma unroll
      for (int j = 0; j < 8; ++j) square += numbers[item][j] * numbers[item][j];
    }
  }
  float inverse = 1.f;
  if constexpr (NORM) {
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
    if (lane == 0) squares[warp] = square;
    __syncthreads();
    float sum = 0.f;
    #pragma unroll
    for (int i = 0; i < WARPS; ++i) sum += squares[i];
    inverse = rsqrtf(sum / K + eps);
  }
  #pragma unroll
  for (int item = 0; item < EACH; ++item) {
    const int i = threadIdx.x + item * THREADS;
    float total = 0.f;
    if (i < VECTORS) {
      if constexpr (NORM) {
        float weights[8];
        widen(raw_weights[item], weights);
        #pragma unroll
        for (int j = 0; j < 8; ++j)
          numbers[item][j] = __bfloat162float(__float2bfloat16(numbers[item][j] * inverse * weights[j]));
      }
      __nv_bfloat162 pairs[4];
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        total += numbers[item][j] + numbers[item][j + 4];
        pairs[j] = __floats2bfloat162_rn(numbers[item][j], numbers[item][j + 4]);
      }
      staged[i] = *reinterpret_cast<uint4*>(pairs);
    }
    #pragma unroll
    for (int step = 1; step < GROUP / 8; step *= 2) total += __shfl_xor_sync(0xffffffff, total, step);
    if (i < VECTORS && i % (GROUP / 8) == 0) totals[i / (GROUP / 8)] = total;
  }
  __syncthreads();
}
