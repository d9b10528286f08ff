  // Attention of up to TOKENS tokens that follow each other, with the norms of their heads (NORM), their RoPE, and their append to
  // the cache, in one launch of HEADS x SPLITS x L blocks.
  //
  // Arrays: qkv [L, HEADS + 2 KV_HEADS, D] holds the queries, keys and values of all heads. Older tokens are in k and v [KV_HEADS,
  // capacity, D], the newest in tail_k and tail_v [KV_HEADS, TAIL, D]. slot_mapping begins with the position of the first new token
  // and then, from the lowest bit, 24 bits of how many older tokens there are and 7 of how many newest, behind which the new ones
  // come. In a ring, whose newest tokens are all, the highest bit is set, and there are 16 bits of how many are in use and 15 of the
  // column that the new token overwrites; what stood there is not attended to. next_k and next_v are the newest tokens with the new
  // ones among them.
  //
  // A block computes one head of one token for one of SPLITS parts of the keys before the new tokens; the last part has the new tokens
  // too. It prepares (norm, RoPE) the query and the keys of the new tokens up to its own, which are nowhere else yet. Then LANES lanes
  // read a key and its value, with AHEAD keys in flight, so that a block reads STREAMS x AHEAD keys at a time; each stream of lanes has
  // its own peak (the highest score so far), weight (the sum of shares) and D sums, and these are added up in the end: in a warp by
  // shuffles, in the block through shared memory.
  //
  // Shared memory: query, new_keys and new_values as prepared (bfloat16), and of each warp its peak, weight and sums (f32).
  //
  // Why the last block adds: the keys of one head are too few for one block to hide the time that a read takes, and a second launch
  // that adds up the parts would take as long as the attention itself. So each block writes its part to parts [L, HEADS, SPLITS,
  // D + 2] (D sums, the peak, the weight) and counts itself in finished [L, HEADS], which is zero before. Whoever counts to SPLITS has
  // seen that all parts are written: it adds them up and sets its counter back to zero, for the next launch.
  static_assert(D % 8 == 0 && D <= 256 && D <= THREADS);
  constexpr int VECTORS = D / 8; // of 16 bytes in a row
  constexpr int LANES = lanes_of_vector(D);
  constexpr int STREAMS = THREADS / LANES;
  constexpr int WARPS = THREADS / 32;
  constexpr int AHEAD = 4;
  const int head = blockIdx.x, split = blockIdx.y, token = blockIdx.z, num_tokens = gridDim.z;
  const int kv_head = head / (HEADS / KV_HEADS);
  const int lane = threadIdx.x % LANES, stream = threadIdx.x / LANES, warp = threadIdx.x / 32;
  const bool is_ring = slot_mapping[1] < 0;
  const int position = slot_mapping[0], stored = is_ring ? 0 : slot_mapping[1] & 0xffffff;
  const int tail = is_ring ? slot_mapping[1] & 0xffff : slot_mapping[1] >> 24, slot = is_ring ? (slot_mapping[1] >> 16) & 0x7fff : tail;

  __shared__ __align__(16) Value query[D], new_keys[TOKENS][D], new_values[TOKENS][D];
  auto prepare = [&](const Value* from, const Value* norm, Value* to, int at_position) {
    prepare_head<D, PAIRS, TRADITIONAL, NORM>(from, norm, __int_as_float(EPS_BITS), to, [&](int i, float& sine, float& cosine) {
      sincosf(at_position * angles[i], &sine, &cosine);
    });
  };
  // The warps take turns: the query, then keys and values.
  for (int item = warp; item < 3 + 2 * token; item += WARPS) {
    const int other = (item - 1) / 2;
    const Value* row = qkv + (size_t)(item == 0 ? token : other) * (HEADS + 2 * KV_HEADS) * D;
    if (item == 0) {
      prepare(row + head * D, query_norm, query, position + token);
    } else if (item % 2 == 1) {
      prepare(row + (HEADS + kv_head) * D, key_norm, new_keys[other], position + other);
    } else {
      for (int i = threadIdx.x % 32; i < D; i += 32) new_values[other][i] = row[(HEADS + KV_HEADS + kv_head) * D + i];
    }
  }
  __syncthreads();

  const size_t base = (size_t)kv_head * k_shape[2] * D, tail_base = (size_t)kv_head * TAIL * D;
  if (token == num_tokens - 1) {
    // The blocks of the query heads that share a key head each copy a part.
    constexpr int SHARING = HEADS / KV_HEADS * SPLITS;
    const int part = head % (HEADS / KV_HEADS) * SPLITS + split;
    for (int i = part * THREADS + threadIdx.x; i < TAIL * VECTORS; i += SHARING * THREADS) {
      const int column = i / VECTORS - slot, at = i % VECTORS;
      const bool is_new = column >= 0 && column < num_tokens;
      reinterpret_cast<uint4*>(next_k + tail_base)[i] =
          is_new ? reinterpret_cast<uint4*>(new_keys[column])[at] : reinterpret_cast<const uint4*>(tail_k + tail_base)[i];
      reinterpret_cast<uint4*>(next_v + tail_base)[i] =
          is_new ? reinterpret_cast<uint4*>(new_values[column])[at] : reinterpret_cast<const uint4*>(tail_v + tail_base)[i];
    }
  }

  // What a lane reads of a row; nothing if it has nothing to read.
  auto shared_vector = [&](const Value* row) { return lane < VECTORS ? reinterpret_cast<const uint4*>(row)[lane] : uint4{}; };
  auto global_vector = [&](const Value* row) { return lane < VECTORS ? __ldg(reinterpret_cast<const uint4*>(row) + lane) : uint4{}; };
  float asked[8];
  widen(shared_vector(query), asked);
  #pragma unroll
  for (int i = 0; i < 8; ++i) asked[i] *= __int_as_float(SCALE_BITS) * 1.44269504f;

  Attended attended;
  const int before = stored + tail;
  const int chunk = (before + SPLITS - 1) / SPLITS;
  const int first = split * chunk, last = min(first + chunk, before);
  for (int from = first; from < last; from += STREAMS * AHEAD) {
    uint4 raw_k[AHEAD], raw_v[AHEAD];
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int other = min(from + stream + i * STREAMS, last - 1);
      const bool is_stored = other < stored;
      const size_t at = is_stored ? base + (size_t)other * D : tail_base + (size_t)(other - stored) * D;
      raw_k[i] = global_vector((is_stored ? k : tail_k) + at);
      raw_v[i] = global_vector((is_stored ? v : tail_v) + at);
    }
    float scores[AHEAD];
    bool counts[AHEAD];
    float highest = attended.peak;
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const float score = score_of<LANES>(asked, raw_k[i]);
      const int other = from + stream + i * STREAMS;
      counts[i] = other < last && (other < stored + slot || other >= stored + slot + num_tokens);
      scores[i] = counts[i] ? score : NOTHING;
      highest = fmaxf(highest, scores[i]);
    }
    attended.raise_peak(highest);
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) attended.add(raw_v[i], scores[i], counts[i]);
  }
  // The new tokens, in the last part.
  for (int from = 0; from <= token; from += STREAMS) {
    const int other = min(from + stream, token);
    const bool counts = from + stream <= token && split == SPLITS - 1;
    const float score = score_of<LANES>(asked, shared_vector(new_keys[other]));
    attended.raise_peak(counts ? fmaxf(attended.peak, score) : attended.peak);
    attended.add(shared_vector(new_values[other]), score, counts);
  }

  add_up_warp<LANES>(attended);
  __shared__ AttendedByWarps<D, WARPS> by_warps;
  by_warps.set(attended);
  __syncthreads();
  const size_t index = (size_t)token * HEADS + head;
  float* of_head = parts + index * SPLITS * (D + 2);
  if (threadIdx.x < D) {
    by_warps.write_part(threadIdx.x, of_head + split * (D + 2));
    // Before the block is counted.
    __threadfence();
  }
  if (!is_last_of_splits<SPLITS>(const_cast<int*>(finished) + index)) return;
  if (threadIdx.x < D) y[index * D + threadIdx.x] = __float2bfloat16(add_up_parts<D, SPLITS, 8>(of_head, threadIdx.x));
