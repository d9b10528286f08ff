  // Attention of one token, with the norms of its heads (NORM), its RoPE, and its append to the cache.
  // qkv holds the queries, keys and values of all heads. The tokens before it are in k and v [KV_HEADS, capacity, D] and among the newest,
  // tail_k and tail_v [KV_HEADS, TAIL, D]. sizes holds the number of tokens in each, the token's own column among the newest, and its
  // position. next_k and next_v are the newest tokens with this one written into its column; a token that stood there is not attended to.
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
  const int stored = sizes[0], tail = sizes[1], slot = sizes[2], position = sizes[3];

  __shared__ __align__(16) Value query[D], key[D], value[D];
  // Warp 0 prepares the query, warp 1 the key, warp 2 the value.
  auto prepare = [&](const Value* from, const Value* norm, Value* to) {
    float numbers[D / 32];
    float square = 0.f;
    #pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      numbers[i] = __bfloat162float(from[threadIdx.x % 32 + i * 32]);
      square += numbers[i] * numbers[i];
    }
    float inverse = 1.f;
    if constexpr (NORM) {
      for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
      inverse = rsqrtf(square / D + __int_as_float(EPS_BITS));
    }
    #pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      const int at = threadIdx.x % 32 + i * 32;
      if constexpr (NORM) numbers[i] *= inverse * __bfloat162float(norm[at]);
      to[at] = __float2bfloat16(numbers[i]);
    }
    __syncwarp();
    for (int i = threadIdx.x % 32; i < PAIRS; i += 32) {
      const int low = TRADITIONAL ? 2 * i : i, high = TRADITIONAL ? low + 1 : i + PAIRS;
      float sine, cosine;
      sincosf(position * angles[i], &sine, &cosine);
      const float a = __bfloat162float(to[low]), b = __bfloat162float(to[high]);
      to[low] = __float2bfloat16(a * cosine - b * sine);
      to[high] = __float2bfloat16(a * sine + b * cosine);
    }
  };
  if (warp == 0) prepare(qkv + head * D, query_norm, query);
  if (warp == 1) prepare(qkv + (HEADS + kv_head) * D, key_norm, key);
  if (warp == 2) {
    for (int i = threadIdx.x % 32; i < D; i += 32) value[i] = qkv[(HEADS + KV_HEADS + kv_head) * D + i];
  }
  __syncthreads();

  const size_t base = (size_t)kv_head * k_shape[2] * D, tail_base = (size_t)kv_head * TAIL * D;
  {
    // The blocks of the query heads that share a key head each copy a part.
    constexpr int SHARING = HEADS / KV_HEADS * SPLITS;
    const int part = head % (HEADS / KV_HEADS) * SPLITS + split;
    for (int i = part * THREADS + threadIdx.x; i < TAIL * LANES; i += SHARING * THREADS) {
      const int token = i / LANES, at = i % LANES;
      const bool is_new = token == slot;
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
    bool counts[AHEAD];
    float highest = peak;
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const float score = score_of(raw_k[i]);
      const int token = from + stream + i * STREAMS;
      counts[i] = token < last && token != stored + slot;
      scores[i] = counts[i] ? score : NOTHING;
      highest = fmaxf(highest, scores[i]);
    }
    raise_peak(highest);
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) add(raw_v[i], scores[i], counts[i]);
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
