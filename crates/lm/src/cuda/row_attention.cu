  // Attention of one token of each row of a batch, with the norms of their heads (NORM), their RoPE, and their append to the cache, in one
  // launch of HEADS / SHARED x SPLITS x B blocks.
  //
  // Arrays: qkv [B, HEADS + 2 KV_HEADS, D] holds the queries, keys and values of all heads. Older tokens are in k and v [B, KV_HEADS,
  // capacity, D], the newest in tail_k and tail_v [B, KV_HEADS, TAIL, D]. slot_mapping [B, 4] holds of each row the position of its
  // token; then, from the lowest bit, 24 bits of how many older columns there are and 7 of how many newest, behind which the token comes;
  // the first column that the row attends to: rows end at the same column and begin at any; and where the older columns begin. In a ring
  // they begin at the oldest, and the first follows the last: those that the newest tokens will overwrite come before all rows' first
  // column. next_k and next_v are the newest tokens with those of this step.
  //
  // A block computes SHARED of the query heads that share a key head, for one of SPLITS parts of the keys of one row: each key is read once
  // for all of them. The last part has the new token too. How a block reads keys, and why the last block adds up the parts, is told in
  // attention.cu; here finished is [B, HEADS / SHARED] and parts [B, HEADS, SPLITS, D + 2].
  static_assert(D % 8 == 0 && D <= 256 && HEADS / KV_HEADS % SHARED == 0 && SHARED + 2 <= THREADS / 32);
  constexpr int VECTORS = D / 8; // of 16 bytes in a head's vector
  constexpr int LANES = lanes_of_vector(D);
  constexpr int STREAMS = THREADS / LANES;
  constexpr int WARPS = THREADS / 32;
  constexpr int AHEAD = 4;
  constexpr int GROUPS = HEADS / SHARED, SHARING = HEADS / KV_HEADS;
  const int group = blockIdx.x, split = blockIdx.y, row = blockIdx.z;
  const int head = group * SHARED, kv_head = head / SHARING;
  const int lane = threadIdx.x % LANES, stream = threadIdx.x / LANES, warp = threadIdx.x / 32;
  const int position = slot_mapping[4 * row], columns = slot_mapping[4 * row + 1];
  const int begin = slot_mapping[4 * row + 2], oldest = slot_mapping[4 * row + 3];
  const int stored = columns & 0xffffff, tail = columns >> 24;

  __shared__ __align__(16) Value queries[SHARED][D], new_key[D], new_value[D];
  const Value* own = qkv + (size_t)row * (HEADS + 2 * KV_HEADS) * D;
  // A warp prepares a vector.
  if (warp <= SHARED) {
    const bool is_key = warp == SHARED;
    prepare_head<D, PAIRS, TRADITIONAL, NORM>(
        own + (is_key ? HEADS + kv_head : head + warp) * D, is_key ? key_norm : query_norm, __int_as_float(EPS_BITS),
        is_key ? new_key : queries[warp],
        [&](int i, float& sine, float& cosine) { sincosf(position * angles[i], &sine, &cosine); });
  } else if (warp == SHARED + 1) {
    for (int i = threadIdx.x % 32; i < D; i += 32) new_value[i] = own[(HEADS + KV_HEADS + kv_head) * D + i];
  }
  __syncthreads();

  const size_t of_head = (size_t)row * KV_HEADS + kv_head;
  const size_t base = of_head * k_shape[2] * D, tail_base = of_head * TAIL * D;
  {
    // The blocks that share a key head each copy a part.
    constexpr int PARTS = SHARING / SHARED * SPLITS;
    const int part = group % (SHARING / SHARED) * SPLITS + split;
    for (int i = part * THREADS + threadIdx.x; i < TAIL * VECTORS; i += PARTS * THREADS) {
      const bool is_new = i / VECTORS == tail;
      reinterpret_cast<uint4*>(next_k + tail_base)[i] =
          is_new ? reinterpret_cast<uint4*>(new_key)[i % VECTORS] : reinterpret_cast<const uint4*>(tail_k + tail_base)[i];
      reinterpret_cast<uint4*>(next_v + tail_base)[i] =
          is_new ? reinterpret_cast<uint4*>(new_value)[i % VECTORS] : reinterpret_cast<const uint4*>(tail_v + tail_base)[i];
    }
  }

  // What a lane reads of a vector; nothing if it has nothing to read.
  auto shared_vector = [&](const Value* vector) { return lane < VECTORS ? reinterpret_cast<const uint4*>(vector)[lane] : uint4{}; };
  auto global_vector = [&](const Value* vector) { return lane < VECTORS ? __ldg(reinterpret_cast<const uint4*>(vector) + lane) : uint4{}; };
  float asked[SHARED][8];
  Attended attended[SHARED];
  #pragma unroll
  for (int h = 0; h < SHARED; ++h) {
    widen(shared_vector(queries[h]), asked[h]);
    #pragma unroll
    for (int i = 0; i < 8; ++i) asked[h][i] *= __int_as_float(SCALE_BITS) * 1.44269504f;
  }

  const int before = stored + tail;
  const int chunk = (before - begin + SPLITS - 1) / SPLITS;
  const int first = begin + split * chunk, last = min(first + chunk, before);
  for (int from = first; from < last; from += STREAMS * AHEAD) {
    uint4 keys[AHEAD], values[AHEAD];
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int other = min(from + stream + i * STREAMS, last - 1);
      const bool is_stored = other < stored;
      const int column = is_stored && other + oldest < stored ? other + oldest : other + oldest - stored;
      const size_t at = is_stored ? base + (size_t)column * D : tail_base + (size_t)(other - stored) * D;
      keys[i] = global_vector((is_stored ? k : tail_k) + at);
      values[i] = global_vector((is_stored ? v : tail_v) + at);
    }
    #pragma unroll
    for (int h = 0; h < SHARED; ++h) {
      float scores[AHEAD];
      float highest = attended[h].peak;
      #pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        scores[i] = score_of<LANES>(asked[h], keys[i]);
        if (from + stream + i * STREAMS >= last) scores[i] = NOTHING;
        highest = fmaxf(highest, scores[i]);
      }
      attended[h].raise_peak(highest);
      #pragma unroll
      for (int i = 0; i < AHEAD; ++i) attended[h].add(values[i], scores[i], from + stream + i * STREAMS < last);
    }
  }
  // The new token, in one stream of the last part.
  const bool has_new = stream == 0 && split == SPLITS - 1;
  #pragma unroll
  for (int h = 0; h < SHARED; ++h) {
    const float score = score_of<LANES>(asked[h], shared_vector(new_key));
    attended[h].raise_peak(has_new ? fmaxf(attended[h].peak, score) : attended[h].peak);
    attended[h].add(shared_vector(new_value), score, has_new);
    add_up_warp<LANES>(attended[h]);
  }

  __shared__ AttendedByWarps<D, WARPS> by_warps[SHARED];
  #pragma unroll
  for (int h = 0; h < SHARED; ++h) by_warps[h].set(attended[h]);
  __syncthreads();
  float* of_group = parts + ((size_t)row * HEADS + head) * SPLITS * (D + 2);
  for (int i = threadIdx.x; i < SHARED * D; i += THREADS) {
    const int h = i / D, at = i % D;
    by_warps[h].write_part(at, of_group + (h * SPLITS + split) * (D + 2));
  }
  // Before the block is counted.
  __threadfence();
  if (!is_last_of_splits<SPLITS>(const_cast<int*>(finished) + row * GROUPS + group)) return;
  for (int i = threadIdx.x; i < SHARED * D; i += THREADS) {
    const int h = i / D, at = i % D;
    y[((size_t)row * HEADS + head) * D + i] = __float2bfloat16(add_up_parts<D, SPLITS, 16>(of_group + h * SPLITS * (D + 2), at));
  }
