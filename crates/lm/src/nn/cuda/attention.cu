  // Attention of one token, with its RoPE and its append to the cache.
  // qkv holds the queries, keys and values of all heads. The tokens before it are in k and v [KV_HEADS, capacity, D] and in the tail
  // buffer, tail_k and tail_v [KV_HEADS, TAIL, D]; sizes holds the number of tokens in each. next_k and next_v are the tail buffer with
  // this token appended.
  // A block computes one query head or, with SPLITS > 1, one part of its keys; y then holds the D sums, the peak and the total weight of
  // each part, for combine.cu. A key is read by D / 8 lanes, with AHEAD keys in flight for each.
  constexpr int LANES = D / 8;
  constexpr int STREAMS = THREADS / LANES;
  constexpr int WARPS = THREADS / 32;
  constexpr int AHEAD = 4;
  constexpr float NOTHING = -1e30f;
  using Value = __nv_bfloat16;
  const int head = blockIdx.x, split = blockIdx.y;
  const int kv_head = head / (HEADS / KV_HEADS);
  const int lane = threadIdx.x % LANES, stream = threadIdx.x / LANES, warp = threadIdx.x / 32;
  const int stored = sizes[0], tail = sizes[1];

  __shared__ __align__(16) Value query[D], key[D], value[D];
  auto rotate = [&](const Value* from, Value* to) {
    const int i = threadIdx.x;
    const int low = TRADITIONAL ? 2 * i : i, high = TRADITIONAL ? low + 1 : i + D / 2;
    float sine, cosine;
    sincosf((stored + tail) * angles[i], &sine, &cosine);
    const float x = __bfloat162float(from[low]), y = __bfloat162float(from[high]);
    to[low] = __float2bfloat16(x * cosine - y * sine);
    to[high] = __float2bfloat16(x * sine + y * cosine);
  };
  if (threadIdx.x < D / 2) {
    rotate(qkv + head * D, query);
    rotate(qkv + (HEADS + kv_head) * D, key);
  }
  if (threadIdx.x < D) value[threadIdx.x] = qkv[(HEADS + KV_HEADS + kv_head) * D + threadIdx.x];
  __syncthreads();

  const size_t base = (size_t)kv_head * k_shape[2] * D, tail_base = (size_t)kv_head * TAIL * D;
  if (split == 0 && head % (HEADS / KV_HEADS) == 0) {
    for (int i = threadIdx.x; i < TAIL * LANES; i += THREADS) {
      const int token = i / LANES, at = i % LANES;
      const bool is_new = token == tail;
      reinterpret_cast<uint4*>(next_k + tail_base)[i] =
          is_new ? reinterpret_cast<uint4*>(key)[at] : reinterpret_cast<const uint4*>(tail_k + tail_base)[i];
      reinterpret_cast<uint4*>(next_v + tail_base)[i] =
          is_new ? reinterpret_cast<uint4*>(value)[at] : reinterpret_cast<const uint4*>(tail_v + tail_base)[i];
    }
  }

  auto widen = [](uint4 raw, float* to) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  };
  // Powers of two instead of e, so that weights cost one instruction.
  float asked[8];
  widen(reinterpret_cast<uint4*>(query)[lane], asked);
  #pragma unroll
  for (int i = 0; i < 8; ++i) asked[i] *= __int_as_float(SCALE_BITS) * 1.44269504f;

  float peak = NOTHING, weight = 0.f, sums[8] = {};
  auto score_of = [&](uint4 raw) {
    float numbers[8];
    widen(raw, numbers);
    float score = 0.f;
    #pragma unroll
    for (int j = 0; j < 8; ++j) score += asked[j] * numbers[j];
    #pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffff, score, step);
    return score;
  };
  auto raise_peak = [&](float highest) {
    const float shrink = exp2f(peak - highest);
    weight *= shrink;
    #pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] *= shrink;
    peak = highest;
  };
  auto add = [&](uint4 raw, float score, bool counts) {
    float numbers[8];
    widen(raw, numbers);
    const float share = counts ? exp2f(score - peak) : 0.f;
    weight += share;
    #pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] += share * numbers[j];
  };

  const int before = stored + tail;
  const int chunk = (before + SPLITS - 1) / SPLITS;
  const int first = split * chunk, last = min(first + chunk, before);
  for (int from = first; from < last; from += STREAMS * AHEAD) {
    uint4 raw_k[AHEAD], raw_v[AHEAD];
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int token = min(from + stream + i * STREAMS, last - 1);
      const bool is_stored = token < stored;
      const size_t at = is_stored ? base + (size_t)token * D : tail_base + (size_t)(token - stored) * D;
      raw_k[i] = __ldg(reinterpret_cast<const uint4*>((is_stored ? k : tail_k) + at) + lane);
      raw_v[i] = __ldg(reinterpret_cast<const uint4*>((is_stored ? v : tail_v) + at) + lane);
    }
    float scores[AHEAD];
    float highest = peak;
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const float score = score_of(raw_k[i]);
      scores[i] = from + stream + i * STREAMS < last ? score : NOTHING;
      highest = fmaxf(highest, scores[i]);
    }
    raise_peak(highest);
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) add(raw_v[i], scores[i], from + stream + i * STREAMS < last);
  }
  // The token itself, which is nowhere else yet.
  const bool is_mine = stream == 0 && split == SPLITS - 1;
  const float own = score_of(reinterpret_cast<uint4*>(key)[lane]);
  raise_peak(is_mine ? fmaxf(peak, own) : peak);
  add(reinterpret_cast<uint4*>(value)[lane], own, is_mine);

  #pragma unroll
  for (int step = LANES; step < 32; step *= 2) {
    raise_peak(fmaxf(peak, __shfl_xor_sync(0xffffffff, peak, step)));
    weight += __shfl_xor_sync(0xffffffff, weight, step);
    #pragma unroll
    for (int j = 0; j < 8; ++j) sums[j] += __shfl_xor_sync(0xffffffff, sums[j], step);
  }
  __shared__ float peaks[WARPS], weights[WARPS], partial[WARPS][D];
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
    if constexpr (SPLITS == 1) {
      y[head * D + threadIdx.x] = __float2bfloat16(sum / total);
    } else {
      auto* out = reinterpret_cast<float*>(y) + (head * SPLITS + split) * (D + 2);
      out[threadIdx.x] = sum;
      if (threadIdx.x == 0) {
        out[D] = highest;
        out[D + 1] = total;
      }
    }
  }
