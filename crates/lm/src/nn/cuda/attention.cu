  // Attention of one token: y = softmax(q kᵀ SCALE) v over the keys bounds[row] = (first, last) of each row. The buffers k and v are
  // [B, KV_HEADS, capacity, D], contiguous. A block takes one query head, or with SPLITS > 1 one part of its keys; parts are then
  // D sums, the peak and the total weight, for combine.cu. A key is read by D / 8 lanes, AHEAD keys in flight for each.
  constexpr int LANES = D / 8;
  constexpr int STREAMS = THREADS / LANES;
  constexpr int WARPS = THREADS / 32;
  constexpr int AHEAD = 4;
  using Value = __nv_bfloat16;
  const int head = blockIdx.x, split = blockIdx.y, row = blockIdx.z;
  const int lane = threadIdx.x % LANES, stream = threadIdx.x / LANES;
  const int capacity = k_shape[2];
  const size_t base = ((size_t)row * KV_HEADS + head / (HEADS / KV_HEADS)) * capacity * D + lane * 8;
  const Value* keys = k + base;
  const Value* values = v + base;
  const int length = bounds[2 * row + 1] - bounds[2 * row];
  const int chunk = (length + SPLITS - 1) / SPLITS;
  const int first = bounds[2 * row] + split * chunk;
  const int last = min(first + chunk, bounds[2 * row + 1]);

  auto widen = [](uint4 raw, float* to) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  };
  float query[8];
  widen(*reinterpret_cast<const uint4*>(q + ((size_t)row * HEADS + head) * D + lane * 8), query);
  #pragma unroll
  for (int i = 0; i < 8; ++i) query[i] *= __int_as_float(SCALE_BITS) * 1.44269504f;

  float peak = -1e30f, weight = 0.f, sums[8] = {};
  for (int from = first; from < last; from += STREAMS * AHEAD) {
    const int t = from + stream;
    uint4 raw_k[AHEAD], raw_v[AHEAD];
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int at = min(t + i * STREAMS, last - 1);
      raw_k[i] = __ldg(reinterpret_cast<const uint4*>(keys + (size_t)at * D));
      raw_v[i] = __ldg(reinterpret_cast<const uint4*>(values + (size_t)at * D));
    }
    float scores[AHEAD];
    float highest = peak;
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      float key[8];
      widen(raw_k[i], key);
      float score = 0.f;
      #pragma unroll
      for (int j = 0; j < 8; ++j) score += query[j] * key[j];
      #pragma unroll
      for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffff, score, step);
      scores[i] = t + i * STREAMS < last ? score : -1e30f;
      highest = fmaxf(highest, scores[i]);
    }
    const float shrink = exp2f(peak - highest);
    weight *= shrink;
    #pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] *= shrink;
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      float value[8];
      widen(raw_v[i], value);
      const float share = t + i * STREAMS < last ? exp2f(scores[i] - highest) : 0.f;
      weight += share;
      #pragma unroll
      for (int j = 0; j < 8; ++j) sums[j] += share * value[j];
    }
    peak = highest;
  }
  #pragma unroll
  for (int step = LANES; step < 32; step *= 2) {
    const float other = __shfl_xor_sync(0xffffffff, peak, step);
    const float highest = fmaxf(peak, other);
    const float shrink = exp2f(peak - highest);
    weight *= shrink;
    weight += __shfl_xor_sync(0xffffffff, weight, step);
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      sums[j] *= shrink;
      sums[j] += __shfl_xor_sync(0xffffffff, sums[j], step);
    }
    peak = highest;
  }
  __shared__ float peaks[WARPS], weights[WARPS], partial[WARPS][D];
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 < LANES) {
    #pragma unroll
    for (int j = 0; j < 8; ++j) partial[warp][lane * 8 + j] = sums[j];
    if (lane == 0) {
      peaks[warp] = peak;
      weights[warp] = weight;
    }
  }
  __syncthreads();
  if (threadIdx.x < D) {
    float highest = peaks[0];
    for (int i = 1; i < WARPS; ++i) highest = fmaxf(highest, peaks[i]);
    float total = 0.f, sum = 0.f;
    for (int i = 0; i < WARPS; ++i) {
      const float shrink = exp2f(peaks[i] - highest);
      total += weights[i] * shrink;
      sum += partial[i][threadIdx.x] * shrink;
    }
    const size_t index = (size_t)row * HEADS + head;
    if constexpr (SPLITS == 1) {
      y[index * D + threadIdx.x] = __float2bfloat16(sum / total);
    } else {
      auto* out = reinterpret_cast<float*>(y) + (index * SPLITS + split) * (D + 2);
      out[threadIdx.x] = sum;
      if (threadIdx.x == 0) {
        out[D] = highest;
        out[D + 1] = total;
      }
    }
  }
