// What kernels that attend have in common, and how bfloat16 is read. It stands before each kernel.
using Value = __nv_bfloat16;

// Below every score.
constexpr float NOTHING = -1e30f;

// Eight numbers, read at once.
__device__ __forceinline__ void widen(uint4 raw, float* to) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

// How many lanes read a head's vector together, eight numbers each. Where D / 8 is no power of two, the last ones have nothing to read.
constexpr int lanes_of_vector(int d) { return d <= 64 ? 8 : d <= 128 ? 16 : 32; }

// The score of a key with a query that is scaled already, in every one of the lanes that hold eight numbers of both.
template <int LANES>
__device__ __forceinline__ float score_of(const float (&asked)[8], uint4 key) {
  float numbers[8];
  widen(key, numbers);
  float score = 0.f;
  #pragma unroll
  for (int j = 0; j < 8; ++j) score += asked[j] * numbers[j];
  #pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffff, score, step);
  return score;
}

// What a stream of lanes has attended to so far: the highest score, the sum of shares, and of each lane its eight sums of values.
// Shares are powers of two, which take one instruction; so scores come times the logarithm of e to the base of two.
struct Attended {
  float peak = NOTHING, weight = 0.f, sums[8] = {};

  __device__ __forceinline__ void raise_peak(float highest) {
    const float shrink = exp2f(peak - highest);
    weight *= shrink;
    #pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] *= shrink;
    peak = highest;
  }

  // The peak is not below the score.
  __device__ __forceinline__ void add(uint4 value, float score, bool counts) {
    float numbers[8];
    widen(value, numbers);
    const float share = counts ? exp2f(score - peak) : 0.f;
    weight += share;
    #pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] += share * numbers[j];
  }
};

// What all streams of a warp have attended to, in each of them.
template <int LANES>
__device__ __forceinline__ void add_up_warp(Attended& attended) {
  #pragma unroll
  for (int step = LANES; step < 32; step *= 2) {
    attended.raise_peak(fmaxf(attended.peak, __shfl_xor_sync(0xffffffff, attended.peak, step)));
    attended.weight += __shfl_xor_sync(0xffffffff, attended.weight, step);
    #pragma unroll
    for (int j = 0; j < 8; ++j) attended.sums[j] += __shfl_xor_sync(0xffffffff, attended.sums[j], step);
  }
}

// What the warps of a block have attended to, of one head. Kept in shared memory.
template <int D, int WARPS>
struct AttendedByWarps {
  float peaks[WARPS], weights[WARPS], sums[WARPS][D];

  // Of this warp, whose streams are added up.
  __device__ __forceinline__ void set(const Attended& attended) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane >= D / 8) return;
    #pragma unroll
    for (int j = 0; j < 8; ++j) sums[warp][lane * 8 + j] = attended.sums[j];
    if (lane == 0) {
      peaks[warp] = attended.peak;
      weights[warp] = attended.weight;
    }
  }

  // Writes what all warps have attended to as a part [D + 2]: D sums, the peak, the weight. A thread writes the sum `at`, that of the first
  // one the last two too.
  __device__ __forceinline__ void write_part(int at, float* part) const {
    float highest = peaks[0];
    #pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) highest = fmaxf(highest, peaks[warp]);
    float total = 0.f, sum = 0.f;
    #pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
      const float shrink = exp2f(peaks[warp] - highest);
      total += weights[warp] * shrink;
      sum += sums[warp][at] * shrink;
    }
    part[at] = sum;
    if (at == 0) {
      part[D] = highest;
      part[D + 1] = total;
    }
  }
};

// Counts this block among the SPLITS that compute the same heads, and says whether it is the last of them: then all parts that they wrote
// before they were counted can be read, and the counter is zero again.
template <int SPLITS>
__device__ __forceinline__ bool is_last_of_splits(int* count) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(count, 1) == SPLITS - 1;
  __syncthreads();
  if (!is_last) return false;
  // Not before all are counted.
  __threadfence();
  if (threadIdx.x == 0) *count = 0;
  return true;
}

// Number `at` of a head's output, added up from its parts [SPLITS, D + 2], of which AHEAD are read ahead.
template <int D, int SPLITS, int AHEAD>
__device__ __forceinline__ float add_up_parts(const float* parts, int at) {
  float highest = NOTHING;
  #pragma unroll AHEAD
  for (int i = 0; i < SPLITS; ++i) highest = fmaxf(highest, __ldcg(parts + i * (D + 2) + D));
  float total = 0.f, sum = 0.f;
  #pragma unroll AHEAD
  for (int i = 0; i < SPLITS; ++i) {
    const float* part = parts + i * (D + 2);
    const float shrink = exp2f(__ldcg(part + D) - highest);
    total += __ldcg(part + D + 1) * shrink;
    sum += __ldcg(part + at) * shrink;
  }
  return sum / total;
}

// A warp prepares a head's vector: its norm, unless there is none, and then its RoPE by the sine and cosine that turn(i, sine, cosine)
// says of each pair.
template <int D, int PAIRS, bool TRADITIONAL, bool NORM, typename Turn>
__device__ __forceinline__ void prepare_head(const Value* from, const Value* norm, float eps, Value* to, Turn turn) {
  constexpr int NUMBERS = (D + 31) / 32; // for each lane
  const int lane = threadIdx.x % 32;
  float numbers[NUMBERS];
  float square = 0.f;
  #pragma unroll
  for (int i = 0; i < NUMBERS; ++i) {
    const int at = lane + i * 32;
    // Past this processor's own cache: other blocks of the same launch may have written it.
    numbers[i] = at < D ? __bfloat162float(__ldcg(from + at)) : 0.f;
    square += numbers[i] * numbers[i];
  }
  float inverse = 1.f;
  if constexpr (NORM) {
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
    inverse = rsqrtf(square / D + eps);
  }
  #pragma unroll
  for (int i = 0; i < NUMBERS; ++i) {
    const int at = lane + i * 32;
    if (at < D) {
      if constexpr (NORM) numbers[i] *= inverse * __bfloat162float(norm[at]);
      to[at] = __float2bfloat16(numbers[i]);
    }
  }
  __syncwarp();
  for (int i = lane; i < PAIRS; i += 32) {
    const int low = TRADITIONAL ? 2 * i : i, high = TRADITIONAL ? low + 1 : i + PAIRS;
    float sine, cosine;
    turn(i, sine, cosine);
    const float a = __bfloat162float(to[low]), b = __bfloat162float(to[high]);
    to[low] = __float2bfloat16(a * cosine - b * sine);
    to[high] = __float2bfloat16(a * sine + b * cosine);
  }
}
