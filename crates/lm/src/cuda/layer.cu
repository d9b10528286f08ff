  // LAYERS whole layers of one token, one after another: norm, queries, keys and values, attention, its output and residual, norm, gated
  // network and residual.
  // One launch of BLOCKS blocks, as many as run at once, that wait for each other between the five phases of each layer and between layers:
  //
  //   1. qkv = norm1(x) times the joined matrix of queries, keys and values
  //   2. attention of SHARED heads that share a key head, over one of SPLITS parts of the keys, to parts
  //   3. hidden = x + the attended vector, added up from parts, times the output's matrix
  //   4. gated = activation(gate) * up, of norm2(hidden)
  //   5. y = hidden + gated times the down matrix, which takes the place of hidden and is the x of the next layer
  //
  // While a block waits for the others the first numbers of its next phase are on their way: of matrices, keys and values. Where it computes
  // several heads at once, as behind long contexts, their sums leave no registers for those of the output's matrix, which come after the attention.
  //
  // What each layer has of its own, such as norm1, is an argument for each, norm1_0 and so on, and OF(norm1) in the loop over the layers.
  // layer.rs writes LAYERS and OF. Arrays of the caches (k, v, tail_k, tail_v, next_k, next_v) are as in attention.cu, all of one shape, and
  // slot_mapping is that of each. turn[0] counts the blocks that have come to a barrier and is zero before; the first number of scratch is
  // zero for the launch after this one, which takes it as its turn.
  // So no two launches run at once: each would occupy multiprocessors that the other waits for. All matrices have 4 bits in groups of
  // GROUP. Norms and roundings are those of product.cu.
  constexpr int WARPS = THREADS / 32;
  constexpr int ATTENDED = HEADS * D;
  constexpr int GROUPS = HEADS / SHARED, ITEMS = GROUPS * SPLITS, PARTS_OF_HEADS = HEADS * SPLITS;
  constexpr int LONGEST = INTER > ATTENDED ? (INTER > HIDDEN ? INTER : HIDDEN) : (ATTENDED > HIDDEN ? ATTENDED : HIDDEN);
  constexpr int PADDED = (LONGEST + CHUNK * WARPS - 1) / CHUNK * CHUNK;
  constexpr int STAGED = PADDED * 2 > WARPS * D * 4 ? PADDED * 2 : WARPS * D * 4; // bytes
  // What phases hand on, the same numbers in each layer, behind 32 of which the first is the next launch's turn.
  float* parts = scratch + 32;                                          // [SPLITS, HEADS, D]
  float* parts_weights = parts + PARTS_OF_HEADS * D;                    // [SPLITS, HEADS, 2], the peak and the weight of each
  Value* qkv = reinterpret_cast<Value*>(parts_weights + 2 * PARTS_OF_HEADS); // [(HEADS + 2 KV_HEADS) D]
  Value* hidden = qkv + (HEADS + 2 * KV_HEADS) * D;                     // [HIDDEN]
  Value* gated = hidden + HIDDEN;                                       // [INTER]
  if (blockIdx.x == 0 && threadIdx.x == 0) scratch[0] = 0.f;
  const bool is_ring = slot_mapping[1] < 0;
  const int stored = is_ring ? 0 : slot_mapping[1] & 0xffffff;
  const int tail = is_ring ? slot_mapping[1] & 0xffff : slot_mapping[1] >> 24, slot = is_ring ? (slot_mapping[1] >> 16) & 0x7fff : tail;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __shared__ uint4 staged[STAGED / 16 + 4]; // the last four are zeros
  __shared__ float totals[PADDED / GROUP]; // of the groups of the staged vector
  __shared__ float sums_of_warps[WARPS][16];
  constexpr int ZEROS = STAGED / 16;
  if (threadIdx.x < 4) staged[ZEROS + threadIdx.x] = uint4{};

  auto round = [](float number) { return __bfloat162float(__float2bfloat16(number)); };

  // The matrices. A strip is 16 rows; the strips of a matrix with two HALVES come in pairs, of which one is N rows behind the other. A block
  // computes every BLOCKS-th strip or pair, and each of its strips is computed by PARTS warps, which divide its CHUNKS among them.
  struct Projections { enum { K = HIDDEN, N = (HEADS + 2 * KV_HEADS) * D, HALVES = 1 }; };
  struct Output { enum { K = HEADS * D, N = HIDDEN, HALVES = 1 }; };
  struct GateUp { enum { K = HIDDEN, N = INTER, HALVES = 2 }; };
  struct Down { enum { K = INTER, N = HIDDEN, HALVES = 1 }; };
  #define STRIPS(S) ((S::N / 16 + BLOCKS - 1) / BLOCKS * S::HALVES)
  #define PARTS(S) (STRIPS(S) <= WARPS / 16 ? 16 : STRIPS(S) <= WARPS / 8 ? 8 : STRIPS(S) <= WARPS / 4 ? 4 : STRIPS(S) <= WARPS / 2 ? 2 : 1)
  #define CHUNKS(S) ((S::K + CHUNK - 1) / CHUNK)
  #define FLUSHED (NUM_COLUMNS * GROUP >= CHUNK ? NUM_COLUMNS * GROUP / CHUNK : 1)
  #define ROUNDED_UP(count) ((count) <= 1 ? 1 : (count) <= 2 ? 2 : ((count) + FLUSHED - 1) / FLUSHED * FLUSHED)
  #define OF_EACH(S) ROUNDED_UP((CHUNKS(S) + PARTS(S) - 1) / PARTS(S))
  #define AT_ONCE(S) (OF_EACH(S) < 4 ? OF_EACH(S) : 4)
  // Chunks whose sums are scaled at once, and how often that happens.
  #define SCALED(S) (FLUSHED < OF_EACH(S) ? FLUSHED : OF_EACH(S))
  #define TIMES(S) (OF_EACH(S) / SCALED(S))
  // Whether the chunks of all warps end where the row ends, so that no read has to be checked.
  #define FILLS_ROWS(S) (PARTS(S) * OF_EACH(S) * CHUNK == S::K)
  // What a lane reads ahead: of AT_ONCE chunks, 32 numbers of the rows lane / 4 and 8 behind it; and the scales and biases of these rows
  // with which the sums of its two columns are scaled first and then.
  #define AHEAD_OF(S, name)                     \
    uint4 name##_packed[AT_ONCE(S)][2];      \
    Value name##_scales[TIMES(S) < 2 ? 1 : 2][2][2], name##_biases[TIMES(S) < 2 ? 1 : 2][2][2]
  // The first row of this warp's strip, and its first chunk. A warp that has no strip reads another's, and nobody adds up what it computes.
  auto row_of = [&](auto shape) {
    using S = decltype(shape);
    const int strip = warp / PARTS(S), half = strip % S::HALVES, index = blockIdx.x + BLOCKS * (strip / S::HALVES);
    return (strip < STRIPS(S) && index * 16 < S::N ? index * 16 : 0) + half * S::N;
  };
  auto first_chunk_of = [&](auto shape) {
    using S = decltype(shape);
    return warp % PARTS(S) * OF_EACH(S);
  };
  // Where this lane's numbers of the first chunk are.
  auto numbers_of = [&](auto shape, const uint32_t* w) {
    using S = decltype(shape);
    return reinterpret_cast<const uint4*>(w) + (row_of(shape) + lane / 4) * (S::K / 32) + first_chunk_of(shape) * (CHUNK / 32) + lane % 4;
  };
  auto read_chunk = [&](auto shape, const uint4* numbers, int i, uint4* packed) {
    using S = decltype(shape);
    const bool is_there = FILLS_ROWS(S) || (first_chunk_of(shape) + i) * CHUNK + lane % 4 * 32 < S::K;
    #pragma unroll
    for (int half = 0; half < 2; ++half)
      packed[half] = is_there ? read_once(numbers + i * (CHUNK / 32) + 8 * half * (S::K / 32)) : uint4{};
  };
  // The groups of this lane's two columns, when sums are scaled for the given time.
  auto groups_of = [&](auto shape, int time) {
    using S = decltype(shape);
    const int last = (first_chunk_of(shape) + (time + 1) * SCALED(S)) * CHUNK / GROUP;
    return (last - 1) / NUM_COLUMNS * NUM_COLUMNS + lane % 4 * 2;
  };
  auto read_scales = [&](auto shape, const Value* scales, const Value* biases, int row, int time, Value (&scale)[2][2], Value (&bias)[2][2]) {
    using S = decltype(shape);
    constexpr int NUM_GROUPS = S::K / GROUP;
    const int group = groups_of(shape, time);
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = (row + lane / 4 + 8 * half) * NUM_GROUPS + group;
      if constexpr (NUM_GROUPS % 2 == 0) {
        const bool is_there = (FILLS_ROWS(S) && NUM_GROUPS % NUM_COLUMNS == 0) || group < NUM_GROUPS;
        reinterpret_cast<uint32_t&>(scale[half]) = is_there ? __ldg(reinterpret_cast<const uint32_t*>(scales + at)) : 0;
        reinterpret_cast<uint32_t&>(bias[half]) = is_there ? __ldg(reinterpret_cast<const uint32_t*>(biases + at)) : 0;
      } else {
        #pragma unroll
        for (int column = 0; column < 2; ++column) {
          const bool is_there = group + column < NUM_GROUPS;
          scale[half][column] = is_there ? scales[at + column] : Value{};
          bias[half][column] = is_there ? biases[at + column] : Value{};
        }
      }
    }
  };
  auto read_ahead = [&](auto shape, const uint32_t* w, const Value* scales, const Value* biases, auto& packed, auto& scale, auto& bias) {
    using S = decltype(shape);
    static_assert(STRIPS(S) <= WARPS && S::N % 16 == 0 && S::K % 32 == 0);
    const int row = row_of(shape);
    const uint4* numbers = numbers_of(shape, w);
    #pragma unroll
    for (int i = 0; i < AT_ONCE(S); ++i) read_chunk(shape, numbers, i, packed[i]);
    #pragma unroll
    for (int time = 0; time < (TIMES(S) < 2 ? 1 : 2); ++time) read_scales(shape, scales, biases, row, time, scale[time], bias[time]);
  };
  // The products of this block's strips with the staged vector, each added up by one thread: write(row, sums of its HALVES).
  auto multiply = [&](auto shape, const uint32_t* w, const Value* scales, const Value* biases, auto& packed, auto& scale, auto& bias, auto write) {
    using S = decltype(shape);
    constexpr int NUM_GROUPS = S::K / GROUP;
    const int row = row_of(shape), first = first_chunk_of(shape);
    const uint4* own = numbers_of(shape, w);
    const int pair = threadIdx.x / 16, output = (blockIdx.x + BLOCKS * pair) * 16 + threadIdx.x % 16;
    const bool has_output = pair < STRIPS(S) / S::HALVES && output < S::N;
    float row_sums[2] = {};
    float sums[4] = {};
    #pragma unroll
    for (int i = 0; i < OF_EACH(S); ++i) {
      const int chunk = first + i;
      const int group = (chunk * CHUNK + lane % 4 * 32) / GROUP;
      const bool is_own = group % NUM_COLUMNS == lane / 4 && (FILLS_ROWS(S) || group < NUM_GROUPS);
      const uint4* vector = staged + (is_own ? chunk * (CHUNK / 8) + lane % 4 * 4 : ZEROS);
      const uint4 upper = packed[i % AT_ONCE(S)][0], lower = packed[i % AT_ONCE(S)][1];
      if (i + AT_ONCE(S) < OF_EACH(S)) read_chunk(shape, own, i + AT_ONCE(S), packed[i % AT_ONCE(S)]);
      add_chunk(sums, upper, lower, vector);
      if ((i + 1) % SCALED(S) == 0) {
        const int time = i / SCALED(S), group = groups_of(shape, time), last = (chunk + 1) * CHUNK / GROUP;
        #pragma unroll
        for (int column = 0; column < 2; ++column) {
          constexpr bool ARE_ALL = FILLS_ROWS(S) && SCALED(S) * CHUNK == NUM_COLUMNS * GROUP;
          if (ARE_ALL || (group + column >= first * CHUNK / GROUP && group + column < last && group + column < NUM_GROUPS)) {
            #pragma unroll
            for (int half = 0; half < 2; ++half)
              row_sums[half] += scaled(sums[2 * half + column], scale[time % 2][half][column], bias[time % 2][half][column], totals[group + column]);
          }
        }
        if (time + 2 < TIMES(S)) read_scales(shape, scales, biases, row, time + 2, scale[time % 2], bias[time % 2]);
        #pragma unroll
        for (int j = 0; j < 4; ++j) sums[j] = 0.f;
      }
    }
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_sums[half] += __shfl_xor_sync(0xffffffff, row_sums[half], 1);
      row_sums[half] += __shfl_xor_sync(0xffffffff, row_sums[half], 2);
      if (lane % 4 == 0) sums_of_warps[warp][lane / 4 + 8 * half] = row_sums[half];
    }
    __syncthreads();
    if (has_output) {
      float products[S::HALVES] = {};
      #pragma unroll
      for (int half = 0; half < S::HALVES; ++half) {
        #pragma unroll
        for (int part = 0; part < PARTS(S); ++part)
          products[half] += sums_of_warps[(pair * S::HALVES + half) * PARTS(S) + part][threadIdx.x % 16];
      }
      write(output, products);
    }
  };

  // A barrier in two halves: `arrive` counts the block, `wait_for_all` waits for the others. What a block reads next it asks for between them;
  // a read asked for before `arrive` would have to complete first. What other blocks wrote is read from L2, past this multiprocessor's own.
  int num_barriers = 0;
  int* arrived = reinterpret_cast<int*>(const_cast<float*>(turn));
  auto arrive = [&]() {
    ++num_barriers;
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"(arrived) : "memory");
  };
  auto wait_for_all = [&]() {
    if (threadIdx.x == 0) {
      // Half a minute: a launch whose blocks do not all run fails instead of standing still.
      constexpr int MOST_POLLS = 1 << 26;
      for (int polls = 0;; ++polls) {
        int count;
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
        if (count >= num_barriers * BLOCKS) break;
        if (polls == MOST_POLLS) __trap();
      }
    }
    __syncthreads();
  };

  static_assert(D % 8 == 0 && D <= 256 && D <= THREADS && HEADS / KV_HEADS % SHARED == 0 && SHARED + 2 <= WARPS);
  constexpr int VECTORS = D / 8;                                         // of 16 bytes in a row
  constexpr int LANES = lanes_of_vector(D);
  constexpr int STREAMS = THREADS / LANES;
  constexpr int AHEAD = 4;
  const int before = stored + tail, chunk = (before + SPLITS - 1) / SPLITS;

  #pragma unroll 1
  for (int layer = 0; layer < LAYERS; ++layer) {
    const Value* before_layer = layer == 0 ? x : hidden;
    Value* behind_layer = layer + 1 == LAYERS ? y : hidden;

    // 1. Queries, keys and values.
    if (layer > 0) arrive();
    AHEAD_OF(Projections, qkv_ahead);
    read_ahead(Projections{}, OF(qkv_w), OF(qkv_scales), OF(qkv_biases), qkv_ahead_packed, qkv_ahead_scales, qkv_ahead_biases);
    if (layer > 0) wait_for_all();
    stage<Projections::K, GROUP, THREADS, true>(staged, totals, OF(norm1), __int_as_float(EPS1_BITS), [&](int i, float* to) {
      widen(__ldcg(reinterpret_cast<const uint4*>(before_layer) + i), to);
    });
    multiply(
        Projections{}, OF(qkv_w), OF(qkv_scales), OF(qkv_biases), qkv_ahead_packed, qkv_ahead_scales, qkv_ahead_biases,
        [&](int row, float* product) { qkv[row] = __float2bfloat16(product[0]); });

    // 2. Attention.
    // As if it changed from layer to layer: what follows from it would be computed once, and there are no registers to keep it in.
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    const int vector_lane = thread % LANES, stream = thread / LANES;
    uint4 raw_k[AHEAD], raw_v[AHEAD];
    auto read_keys = [&](int item, int from) {
      const int kv_head = item % GROUPS * SHARED / (HEADS / KV_HEADS), last = min((item / GROUPS + 1) * chunk, before);
      const size_t base = (size_t)kv_head * k_0_shape[2] * D, tail_base = (size_t)kv_head * TAIL * D;
      if (from >= last || vector_lane >= VECTORS) return;
      #pragma unroll
      for (int i = 0; i < AHEAD; ++i) {
        const int other = min(from + stream + i * STREAMS, last - 1);
        const bool is_stored = other < stored;
        const size_t at = is_stored ? base + (size_t)other * D : tail_base + (size_t)(other - stored) * D;
        raw_k[i] = __ldg(reinterpret_cast<const uint4*>((is_stored ? OF(k) : OF(tail_k)) + at) + vector_lane);
        raw_v[i] = __ldg(reinterpret_cast<const uint4*>((is_stored ? OF(v) : OF(tail_v)) + at) + vector_lane);
      }
    };
    arrive();
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) raw_k[i] = raw_v[i] = uint4{};
    if (int(blockIdx.x) < ITEMS) read_keys(blockIdx.x, blockIdx.x / GROUPS * chunk);
    __shared__ float sines[PAIRS], cosines[PAIRS];
    if (threadIdx.x < PAIRS) sincosf(slot_mapping[0] * OF(angles)[threadIdx.x], &sines[threadIdx.x], &cosines[threadIdx.x]);
    // The newest tokens but the new one.
    for (int i = blockIdx.x * THREADS + thread; i < KV_HEADS * TAIL * VECTORS; i += BLOCKS * THREADS) {
      if (i / VECTORS % TAIL != slot) {
        reinterpret_cast<uint4*>(OF(next_k))[i] = reinterpret_cast<const uint4*>(OF(tail_k))[i];
        reinterpret_cast<uint4*>(OF(next_v))[i] = reinterpret_cast<const uint4*>(OF(tail_v))[i];
      }
    }
    AHEAD_OF(Output, o_ahead);
    auto read_output_ahead = [&]() { read_ahead(Output{}, OF(o_w), OF(o_scales), OF(o_biases), o_ahead_packed, o_ahead_scales, o_ahead_biases); };
    if constexpr (SHARED == 1) read_output_ahead();
    wait_for_all();

    __shared__ __align__(16) Value queries[SHARED][D], new_key[D], new_value[D];
    __shared__ float peaks[WARPS], weights[WARPS];
    float* partial = reinterpret_cast<float*>(staged); // [WARPS, D]
    for (int item = blockIdx.x; item < ITEMS; item += BLOCKS) {
      const int head = item % GROUPS * SHARED, split = item / GROUPS, kv_head = head / (HEADS / KV_HEADS);
      auto prepare = [&](const Value* from, const Value* norm, Value* to) {
        prepare_head<D, PAIRS, TRADITIONAL, NORM>(from, norm, __int_as_float(HEAD_EPS_BITS), to, [&](int i, float& sine, float& cosine) {
          sine = sines[i];
          cosine = cosines[i];
        });
      };
      if (warp < SHARED) prepare(qkv + (head + warp) * D, OF(query_norm), queries[warp]);
      if (warp == SHARED) prepare(qkv + (HEADS + kv_head) * D, OF(key_norm), new_key);
      if (warp == SHARED + 1) {
        for (int i = lane; i < D; i += 32) new_value[i] = __ldcg(qkv + (HEADS + KV_HEADS + kv_head) * D + i);
      }
      __syncthreads();
      // One block of those that share a key head writes the new token.
      if (split == 0 && head % (HEADS / KV_HEADS) == 0 && threadIdx.x < VECTORS) {
        const size_t at = (size_t)(kv_head * TAIL + slot) * VECTORS + threadIdx.x;
        reinterpret_cast<uint4*>(OF(next_k))[at] = reinterpret_cast<uint4*>(new_key)[threadIdx.x];
        reinterpret_cast<uint4*>(OF(next_v))[at] = reinterpret_cast<uint4*>(new_value)[threadIdx.x];
      }
      auto shared_vector = [&](const Value* row) { return vector_lane < VECTORS ? reinterpret_cast<const uint4*>(row)[vector_lane] : uint4{}; };
      float asked[SHARED][8];
      Attended attended[SHARED];
      #pragma unroll
      for (int h = 0; h < SHARED; ++h) {
        widen(shared_vector(queries[h]), asked[h]);
        #pragma unroll
        for (int i = 0; i < 8; ++i) asked[h][i] *= __int_as_float(SCALE_BITS) * 1.44269504f;
      }
      const int first = split * chunk, last = min(first + chunk, before);
      if (item != int(blockIdx.x)) read_keys(item, first);
      for (int from = first; from < last; from += STREAMS * AHEAD) {
        bool counts[AHEAD];
        #pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
          const int other = from + stream + i * STREAMS;
          counts[i] = other < last && other != stored + slot;
        }
        #pragma unroll
        for (int h = 0; h < SHARED; ++h) {
          float scores[AHEAD];
          float highest = attended[h].peak;
          #pragma unroll
          for (int i = 0; i < AHEAD; ++i) {
            const float score = score_of<LANES>(asked[h], raw_k[i]);
            scores[i] = counts[i] ? score : NOTHING;
            highest = fmaxf(highest, scores[i]);
          }
          attended[h].raise_peak(highest);
          #pragma unroll
          for (int i = 0; i < AHEAD; ++i) attended[h].add(raw_v[i], scores[i], counts[i]);
        }
        read_keys(item, from + STREAMS * AHEAD);
      }
      #pragma unroll
      for (int h = 0; h < SHARED; ++h) {
        // The new token, in the last part.
        const bool has_new = stream == 0 && split == SPLITS - 1;
        const float score = score_of<LANES>(asked[h], shared_vector(new_key));
        attended[h].raise_peak(has_new ? fmaxf(attended[h].peak, score) : attended[h].peak);
        attended[h].add(shared_vector(new_value), score, has_new);
        add_up_warp<LANES>(attended[h]);
        if (lane < VECTORS) {
          #pragma unroll
          for (int j = 0; j < 8; ++j) partial[warp * D + vector_lane * 8 + j] = attended[h].sums[j];
          if (lane == 0) {
            peaks[warp] = attended[h].peak;
            weights[warp] = attended[h].weight;
          }
        }
        __syncthreads();
        if (threadIdx.x < D) {
          float highest = peaks[0];
          #pragma unroll
          for (int i = 1; i < WARPS; ++i) highest = fmaxf(highest, peaks[i]);
          float total = 0.f, sum = 0.f;
          #pragma unroll
          for (int i = 0; i < WARPS; ++i) {
            const float shrink = exp2f(peaks[i] - highest);
            total += weights[i] * shrink;
            sum += partial[i * D + threadIdx.x] * shrink;
          }
          const int part = split * HEADS + head + h;
          parts[part * D + threadIdx.x] = sum;
          if (threadIdx.x == 0) {
            parts_weights[2 * part] = highest;
            parts_weights[2 * part + 1] = total;
          }
        }
        __syncthreads();
      }
    }
    arrive();
    if constexpr (SHARED > 1) read_output_ahead();
    // The same thread adds up the same row of both matrices that write to the residual stream, in every layer.
    const int own_row = (blockIdx.x + BLOCKS * (threadIdx.x / 16)) * 16 + threadIdx.x % 16;
    float residual = threadIdx.x / 16 < STRIPS(Output) && own_row < HIDDEN ? __bfloat162float(__ldcg(before_layer + own_row)) : 0.f;
    wait_for_all();

    // 3. The output of attention, and its residual.
    stage<Output::K, GROUP, THREADS, false>(staged, totals, nullptr, 0.f, [&](int i, float* to) {
      const int head = i * 8 / D, within = i * 8 % D;
      float highest = NOTHING;
      #pragma unroll 8
      for (int split = 0; split < SPLITS; ++split) highest = fmaxf(highest, __ldcg(parts_weights + 2 * (split * HEADS + head)));
      float total = 0.f;
      for (int j = 0; j < 8; ++j) to[j] = 0.f;
      #pragma unroll 8
      for (int split = 0; split < SPLITS; ++split) {
        const int part = split * HEADS + head;
        const float shrink = exp2f(__ldcg(parts_weights + 2 * part) - highest);
        total += __ldcg(parts_weights + 2 * part + 1) * shrink;
        const float4* sums = reinterpret_cast<const float4*>(parts + part * D + within);
        const float4 low = __ldcg(sums), high = __ldcg(sums + 1);
        const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        #pragma unroll
        for (int j = 0; j < 8; ++j) to[j] += all[j] * shrink;
      }
      #pragma unroll
      for (int j = 0; j < 8; ++j) to[j] = round(to[j] / total);
    });
    multiply(
        Output{}, OF(o_w), OF(o_scales), OF(o_biases), o_ahead_packed, o_ahead_scales, o_ahead_biases,
        [&](int row, float* product) {
          residual = round(residual + round(product[0]));
          hidden[row] = __float2bfloat16(residual);
        });
    arrive();
    AHEAD_OF(GateUp, gate_up_ahead);
    read_ahead(GateUp{}, OF(gate_up_w), OF(gate_up_scales), OF(gate_up_biases), gate_up_ahead_packed, gate_up_ahead_scales, gate_up_ahead_biases);
    wait_for_all();

    // 4. The gated network.
    auto read_hidden = [&](int i, float* to) { widen(__ldcg(reinterpret_cast<const uint4*>(hidden) + i), to); };
    stage<GateUp::K, GROUP, THREADS, true>(staged, totals, OF(norm2), __int_as_float(EPS2_BITS), read_hidden);
    multiply(
        GateUp{}, OF(gate_up_w), OF(gate_up_scales), OF(gate_up_biases), gate_up_ahead_packed, gate_up_ahead_scales, gate_up_ahead_biases,
        [&](int row, float* product) {
          gated[row] = __float2bfloat16(activated<ACTIVATION>(product[0]) * product[1]);
        });
    arrive();
    AHEAD_OF(Down, down_ahead);
    read_ahead(Down{}, OF(down_w), OF(down_scales), OF(down_biases), down_ahead_packed, down_ahead_scales, down_ahead_biases);
    wait_for_all();

    // 5. Its output, and the residual.
    stage<Down::K, GROUP, THREADS, false>(staged, totals, nullptr, 0.f, [&](int i, float* to) { widen(__ldcg(reinterpret_cast<const uint4*>(gated) + i), to); });
    multiply(
        Down{}, OF(down_w), OF(down_scales), OF(down_biases), down_ahead_packed, down_ahead_scales, down_ahead_biases,
        [&](int row, float* product) { behind_layer[row] = __float2bfloat16(residual + round(product[0])); });
  }
  #undef STRIPS
  #undef PARTS
  #undef CHUNKS
  #undef FLUSHED
  #undef ROUNDED_UP
  #undef OF_EACH
  #undef AT_ONCE
  #undef SCALED
  #undef TIMES
  #undef FILLS_ROWS
  #undef AHEAD_OF
  #undef OF
