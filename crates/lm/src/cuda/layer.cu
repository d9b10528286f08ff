  // A whole layer of one token: norm, queries, keys and values, attention, its output and residual, norm, gated network and residual.
  // One launch of BLOCKS blocks, as many as run at once, that wait for each other between its five phases:
  //
  //   1. qkv = norm1(x) times the joined matrix of queries, keys and values
  //   2. attention of SHARED heads that share a key head, over one of SPLITS parts of the keys, to parts
  //   3. hidden = x + the attended vector, added up from parts, times the output's matrix
  //   4. gated = activation(gate) * up, of norm2(hidden)
  //   5. y = hidden + gated times the down matrix
  //
  // Before a block waits for the others it reads the first numbers of its next phase: of matrices, keys and values. Where it computes several
  // heads at once, as behind long contexts, their sums leave no registers for those of the output's matrix, which come after the attention.
  //
  // Arrays of the cache (k, v, tail_k, tail_v, slot_mapping, next_k, next_v) are as in attention.cu. turn[0] counts the blocks that have
  // come to a barrier and is zero before; the first number of scratch is zero for the launch after this one, which takes it as its turn.
  // So no two launches run at once: each would occupy multiprocessors that the other waits for. All matrices have 4 bits in groups of
  // GROUP. Norms and roundings are those of product.cu.
  constexpr int WARPS = THREADS / 32;
  constexpr int ATTENDED = HEADS * D;
  constexpr int GROUPS = HEADS / SHARED, ITEMS = GROUPS * SPLITS, PARTS_OF_HEADS = HEADS * SPLITS;
  constexpr int LONGEST = INTER > ATTENDED ? (INTER > HIDDEN ? INTER : HIDDEN) : (ATTENDED > HIDDEN ? ATTENDED : HIDDEN);
  constexpr int CHUNK = 128; // numbers of a row that four lanes read at a time
  constexpr int PADDED = (LONGEST + CHUNK * WARPS - 1) / CHUNK * CHUNK;
  constexpr int STAGED = PADDED * 2 > WARPS * D * 4 ? PADDED * 2 : WARPS * D * 4; // bytes
  // What phases hand on, behind 32 numbers of which the first is the next launch's turn.
  float* parts = scratch + 32;                                          // [SPLITS, HEADS, D]
  float* parts_weights = parts + PARTS_OF_HEADS * D;                    // [SPLITS, HEADS, 2], the peak and the weight of each
  Value* qkv = reinterpret_cast<Value*>(parts_weights + 2 * PARTS_OF_HEADS); // [(HEADS + 2 KV_HEADS) D]
  Value* hidden = qkv + (HEADS + 2 * KV_HEADS) * D;                     // [HIDDEN]
  Value* gated = hidden + HIDDEN;                                       // [INTER]
  if (blockIdx.x == 0 && threadIdx.x == 0) scratch[0] = 0.f;
  const bool is_ring = slot_mapping[1] < 0;
  const int position = slot_mapping[0], stored = is_ring ? 0 : slot_mapping[1] & 0xffffff;
  const int tail = is_ring ? slot_mapping[1] & 0xffff : slot_mapping[1] >> 24, slot = is_ring ? (slot_mapping[1] >> 16) & 0x7fff : tail;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __shared__ uint4 staged[STAGED / 16];
  __shared__ float totals[PADDED / GROUP]; // of the groups of the staged vector
  __shared__ float squares[WARPS];
  __shared__ float sums_of_warps[WARPS][16];
  __shared__ uint4 no_numbers;
  if (threadIdx.x == 0) no_numbers = uint4{};

  auto round = [](float number) { return __bfloat162float(__float2bfloat16(number)); };

  // The matrices. A strip is 16 rows; the strips of a matrix with two HALVES come in pairs, of which one is N rows behind the other. A block
  // computes every BLOCKS-th strip or pair, and each of its strips is computed by PARTS warps, which divide its CHUNKS among them.
  struct Projections { enum { K = HIDDEN, N = (HEADS + 2 * KV_HEADS) * D, HALVES = 1 }; };
  struct Output { enum { K = HEADS * D, N = HIDDEN, HALVES = 1 }; };
  struct GateUp { enum { K = HIDDEN, N = INTER, HALVES = 2 }; };
  struct Down { enum { K = INTER, N = HIDDEN, HALVES = 1 }; };
  constexpr int NUM_COLUMNS = 8; // of a matrix product, see multiply
  #define STRIPS(S) ((S::N / 16 + BLOCKS - 1) / BLOCKS * S::HALVES)
  #define PARTS(S) (STRIPS(S) <= WARPS / 16 ? 16 : STRIPS(S) <= WARPS / 8 ? 8 : STRIPS(S) <= WARPS / 4 ? 4 : STRIPS(S) <= WARPS / 2 ? 2 : 1)
  #define CHUNKS(S) ((S::K + CHUNK - 1) / CHUNK)
  #define FLUSHED (NUM_COLUMNS * GROUP >= CHUNK ? NUM_COLUMNS * GROUP / CHUNK : 1)
  #define EVEN(count) ((count) <= 1 ? 1 : (count) <= 2 ? 2 : ((count) + FLUSHED - 1) / FLUSHED * FLUSHED)
  #define OF_EACH(S) EVEN((CHUNKS(S) + PARTS(S) - 1) / PARTS(S))
  #define AT_ONCE(S) (OF_EACH(S) < 4 ? OF_EACH(S) : 4)
  // Chunks whose sums are scaled at once, and how often that happens.
  #define SCALED(S) (FLUSHED < OF_EACH(S) ? FLUSHED : OF_EACH(S))
  #define TIMES(S) (OF_EACH(S) / SCALED(S))
  // What a lane reads ahead: of AT_ONCE chunks, 32 numbers of the rows lane / 4 and 8 behind it; and the scales and biases of these rows
  // with which the sums of its two columns are scaled first and then.
  #define AHEAD_OF(S, name)                     \
    uint4 name##_packed[AT_ONCE(S)][2];      \
    Value name##_scales[TIMES(S) < 2 ? 1 : 2][2][2], name##_biases[TIMES(S) < 2 ? 1 : 2][2][2]
  // The first row of this warp's strip, and its first chunk; a row beyond the matrix if it has none.
  auto row_of = [&](auto shape) {
    using S = decltype(shape);
    const int strip = warp / PARTS(S), half = strip % S::HALVES, index = blockIdx.x + BLOCKS * (strip / S::HALVES);
    return strip < STRIPS(S) && index * 16 < S::N ? index * 16 + half * S::N : -1;
  };
  auto first_chunk_of = [&](auto shape) {
    using S = decltype(shape);
    return warp % PARTS(S) * OF_EACH(S);
  };
  auto read_chunk = [&](auto shape, const uint32_t* w, int row, int chunk, uint4* packed) {
    using S = decltype(shape);
    const int at = chunk * CHUNK + lane % 4 * 32;
    #pragma unroll
    for (int i = 0; i < 2; ++i)
      packed[i] = row >= 0 && at < S::K ? __ldg(reinterpret_cast<const uint4*>(w) + (size_t(row + lane / 4 + 8 * i) * S::K + at) / 32) : uint4{};
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
      const size_t at = size_t(row + lane / 4 + 8 * half) * NUM_GROUPS + group;
      if constexpr (NUM_GROUPS % 2 == 0) {
        const bool is_there = row >= 0 && group < NUM_GROUPS;
        reinterpret_cast<uint32_t&>(scale[half]) = is_there ? __ldg(reinterpret_cast<const uint32_t*>(scales + at)) : 0;
        reinterpret_cast<uint32_t&>(bias[half]) = is_there ? __ldg(reinterpret_cast<const uint32_t*>(biases + at)) : 0;
      } else {
        #pragma unroll
        for (int column = 0; column < 2; ++column) {
          const bool is_there = row >= 0 && group + column < NUM_GROUPS;
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
    #pragma unroll
    for (int i = 0; i < AT_ONCE(S); ++i) read_chunk(shape, w, row, first_chunk_of(shape) + i, packed[i]);
    #pragma unroll
    for (int time = 0; time < (TIMES(S) < 2 ? 1 : 2); ++time) read_scales(shape, scales, biases, row, time, scale[time], bias[time]);
  };
  // D += A B of the tensor cores: A is 16 x 16 numbers, of which a lane has those of the rows lane / 4 and 8 behind it, B 16 x 8, of which it
  // has those of the column lane / 4, and D 16 x 8, of which it has two columns of its two rows.
  auto add_product = [&](float* sums, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  };
  // The products of this block's strips with the staged vector, each added up by one thread: write(row, sums of its HALVES, before(row)),
  // where before is called before the products are computed.
  //
  // A packed number q in the low bits of 128's mantissa is the bfloat16 128 + q. These are multiplied by tensor cores, without loss, with
  // numbers of the vector in that column that stands for their group, and zeros in the others. So the sum of each group is in its own
  // column, and gets its scale and bias there. What the 128 add is taken away with the bias.
  auto multiply = [&](auto shape, const uint32_t* w, const Value* scales, const Value* biases, auto& packed, auto& scale, auto& bias, auto before,
                      auto write) {
    using S = decltype(shape);
    constexpr int NUM_GROUPS = S::K / GROUP;
    const int row = row_of(shape), first = first_chunk_of(shape);
    const int pair = threadIdx.x / 16, output = (blockIdx.x + BLOCKS * pair) * 16 + threadIdx.x % 16;
    const bool has_output = pair < STRIPS(S) / S::HALVES && output < S::N;
    const float known = has_output ? before(output) : 0.f;
    float row_sums[2] = {};
    float sums[4] = {};
    #pragma unroll
    for (int i = 0; i < OF_EACH(S); ++i) {
      const int chunk = first + i;
      const int group = (chunk * CHUNK + lane % 4 * 32) / GROUP;
      const uint4* vector = group % NUM_COLUMNS == lane / 4 && group < NUM_GROUPS ? staged + chunk * (CHUNK / 8) + lane % 4 * 4 : nullptr;
      const uint4 upper = packed[i % AT_ONCE(S)][0], lower = packed[i % AT_ONCE(S)][1];
      if (i + AT_ONCE(S) < OF_EACH(S)) read_chunk(shape, w, row, chunk + AT_ONCE(S), packed[i % AT_ONCE(S)]);
      #pragma unroll
      for (int part = 0; part < 4; ++part) {
        const uint4 numbers = vector ? vector[part] : no_numbers;
        const uint32_t high = part == 0 ? upper.x : part == 1 ? upper.y : part == 2 ? upper.z : upper.w;
        const uint32_t low = part == 0 ? lower.x : part == 1 ? lower.y : part == 2 ? lower.z : lower.w;
        auto pair = [](uint32_t word, int at) { return (word >> (4 * at)) & 0x000f000fu | 0x43004300u; };
        add_product(sums, pair(high, 0), pair(low, 0), pair(high, 1), pair(low, 1), numbers.x, numbers.y);
        add_product(sums, pair(high, 2), pair(low, 2), pair(high, 3), pair(low, 3), numbers.z, numbers.w);
      }
      if ((i + 1) % SCALED(S) == 0) {
        const int time = i / SCALED(S), group = groups_of(shape, time), last = (chunk + 1) * CHUNK / GROUP;
        #pragma unroll
        for (int column = 0; column < 2; ++column) {
          if (group + column >= first * CHUNK / GROUP && group + column < last && group + column < NUM_GROUPS) {
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
              const float factor = __bfloat162float(scale[time % 2][half][column]);
              const float added = __bfloat162float(bias[time % 2][half][column]) - 128.f * factor;
              row_sums[half] += factor * sums[2 * half + column] + added * totals[group + column];
            }
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
      write(output, products, known);
    }
  };

  // Moves a vector of K numbers to shared memory, eight numbers as pairs of one and the fourth behind it, as packed numbers are masked.
  // numbers_of(i, to) gives its numbers 8 i to 8 i + 7.
  auto stage = [&](auto shape, const Value* norm, float eps, auto numbers_of) {
    using S = decltype(shape);
    constexpr int VECTORS = S::K / 8;
    constexpr int EACH = (VECTORS + THREADS - 1) / THREADS;
    float numbers[EACH][8];
    uint4 raw_weights[EACH];
    float square = 0.f;
    #pragma unroll
    for (int item = 0; item < EACH; ++item) {
      const int i = threadIdx.x + item * THREADS;
      if (i < VECTORS) {
        if (norm) raw_weights[item] = __ldg(reinterpret_cast<const uint4*>(norm) + i);
        numbers_of(i, numbers[item]);
        #pragma unroll
        for (int j = 0; j < 8; ++j) square += numbers[item][j] * numbers[item][j];
      }
    }
    float inverse = 1.f;
    if (norm) {
      for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
      if (lane == 0) squares[warp] = square;
      __syncthreads();
      float sum = 0.f;
      #pragma unroll
      for (int i = 0; i < WARPS; ++i) sum += squares[i];
      inverse = rsqrtf(sum / S::K + eps);
    }
    #pragma unroll
    for (int item = 0; item < EACH; ++item) {
      const int i = threadIdx.x + item * THREADS;
      float total = 0.f;
      if (i < VECTORS) {
        if (norm) {
          float weights[8];
          widen(raw_weights[item], weights);
          #pragma unroll
          for (int j = 0; j < 8; ++j) numbers[item][j] = round(numbers[item][j] * inverse * weights[j]);
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
  };

  // Every block has written what it computed before any goes on. What other blocks wrote is read from L2, past this processor's own cache.
  int num_barriers = 0;
  auto wait_for_all = [&]() {
    ++num_barriers;
    __syncthreads();
    if (threadIdx.x == 0) {
      // Half a minute: a launch whose blocks do not all run fails instead of standing still.
      constexpr int MOST_POLLS = 1 << 26;
      int* arrived = reinterpret_cast<int*>(const_cast<float*>(turn));
      __threadfence();
      atomicAdd(arrived, 1);
      for (int polls = 0; *reinterpret_cast<volatile int*>(arrived) < num_barriers * BLOCKS; ++polls) {
        if (polls == MOST_POLLS) __trap();
      }
      __threadfence();
    }
    __syncthreads();
  };
  auto nothing = [](int) { return 0.f; };

  // 1. Queries, keys and values.
  AHEAD_OF(Projections, qkv_ahead);
  read_ahead(Projections{}, qkv_w, qkv_scales, qkv_biases, qkv_ahead_packed, qkv_ahead_scales, qkv_ahead_biases);
  stage(Projections{}, norm1, __int_as_float(EPS1_BITS), [&](int i, float* to) { widen(reinterpret_cast<const uint4*>(x)[i], to); });
  multiply(
      Projections{}, qkv_w, qkv_scales, qkv_biases, qkv_ahead_packed, qkv_ahead_scales, qkv_ahead_biases, nothing,
      [&](int row, float* product, float) { qkv[row] = __float2bfloat16(product[0]); });

  // 2. Attention.
  static_assert(D % 8 == 0 && D <= 256 && D <= THREADS && HEADS / KV_HEADS % SHARED == 0 && SHARED + 2 <= WARPS);
  constexpr int VECTORS = D / 8;                                         // of 16 bytes in a row
  constexpr int LANES = lanes_of_vector(D);
  constexpr int STREAMS = THREADS / LANES;
  constexpr int AHEAD = 4;
  const int before = stored + tail, chunk = (before + SPLITS - 1) / SPLITS;
  const int vector_lane = threadIdx.x % LANES, stream = threadIdx.x / LANES;
  uint4 raw_k[AHEAD], raw_v[AHEAD];
  auto read_keys = [&](int item, int from) {
    const int kv_head = item % GROUPS * SHARED / (HEADS / KV_HEADS), last = min((item / GROUPS + 1) * chunk, before);
    const size_t base = (size_t)kv_head * k_shape[2] * D, tail_base = (size_t)kv_head * TAIL * D;
    if (from >= last || vector_lane >= VECTORS) return;
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int other = min(from + stream + i * STREAMS, last - 1);
      const bool is_stored = other < stored;
      const size_t at = is_stored ? base + (size_t)other * D : tail_base + (size_t)(other - stored) * D;
      raw_k[i] = __ldg(reinterpret_cast<const uint4*>((is_stored ? k : tail_k) + at) + vector_lane);
      raw_v[i] = __ldg(reinterpret_cast<const uint4*>((is_stored ? v : tail_v) + at) + vector_lane);
    }
  };
  #pragma unroll
  for (int i = 0; i < AHEAD; ++i) raw_k[i] = raw_v[i] = uint4{};
  if (int(blockIdx.x) < ITEMS) read_keys(blockIdx.x, blockIdx.x / GROUPS * chunk);
  __shared__ float sines[PAIRS], cosines[PAIRS];
  if (threadIdx.x < PAIRS) sincosf(position * angles[threadIdx.x], &sines[threadIdx.x], &cosines[threadIdx.x]);
  // The newest tokens but the new one.
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < KV_HEADS * TAIL * VECTORS; i += BLOCKS * THREADS) {
    if (i / VECTORS % TAIL != slot) {
      reinterpret_cast<uint4*>(next_k)[i] = reinterpret_cast<const uint4*>(tail_k)[i];
      reinterpret_cast<uint4*>(next_v)[i] = reinterpret_cast<const uint4*>(tail_v)[i];
    }
  }
  AHEAD_OF(Output, o_ahead);
  auto read_output_ahead = [&]() { read_ahead(Output{}, o_w, o_scales, o_biases, o_ahead_packed, o_ahead_scales, o_ahead_biases); };
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
    if (warp < SHARED) prepare(qkv + (head + warp) * D, query_norm, queries[warp]);
    if (warp == SHARED) prepare(qkv + (HEADS + kv_head) * D, key_norm, new_key);
    if (warp == SHARED + 1) {
      for (int i = lane; i < D; i += 32) new_value[i] = __ldcg(qkv + (HEADS + KV_HEADS + kv_head) * D + i);
    }
    __syncthreads();
    // One block of those that share a key head writes the new token.
    if (split == 0 && head % (HEADS / KV_HEADS) == 0 && threadIdx.x < VECTORS) {
      const size_t at = (size_t)(kv_head * TAIL + slot) * VECTORS + threadIdx.x;
      reinterpret_cast<uint4*>(next_k)[at] = reinterpret_cast<uint4*>(new_key)[threadIdx.x];
      reinterpret_cast<uint4*>(next_v)[at] = reinterpret_cast<uint4*>(new_value)[threadIdx.x];
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
  if constexpr (SHARED > 1) read_output_ahead();
  wait_for_all();

  // 3. The output of attention, and its residual.
  stage(Output{}, nullptr, 0.f, [&](int i, float* to) {
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
      Output{}, o_w, o_scales, o_biases, o_ahead_packed, o_ahead_scales, o_ahead_biases, [&](int row) { return __bfloat162float(x[row]); },
      [&](int row, float* product, float residual) { hidden[row] = __float2bfloat16(residual + round(product[0])); });
  AHEAD_OF(GateUp, gate_up_ahead);
  read_ahead(GateUp{}, gate_up_w, gate_up_scales, gate_up_biases, gate_up_ahead_packed, gate_up_ahead_scales, gate_up_ahead_biases);
  wait_for_all();

  // 4. The gated network.
  auto read_hidden = [&](int i, float* to) { widen(__ldcg(reinterpret_cast<const uint4*>(hidden) + i), to); };
  stage(GateUp{}, norm2, __int_as_float(EPS2_BITS), read_hidden);
  multiply(
      GateUp{}, gate_up_w, gate_up_scales, gate_up_biases, gate_up_ahead_packed, gate_up_ahead_scales, gate_up_ahead_biases, nothing,
      [&](int row, float* product, float) {
        const float gate = product[0];
        // GELU's (1 + tanh(z)) / 2 is the sigmoid of 2 z.
        const float z = ACTIVATION == 1 ? gate : 1.5957691216f * (gate + 0.044715f * gate * gate * gate);
        gated[row] = __float2bfloat16(gate / (1.f + __expf(-z)) * product[1]);
      });
  AHEAD_OF(Down, down_ahead);
  read_ahead(Down{}, down_w, down_scales, down_biases, down_ahead_packed, down_ahead_scales, down_ahead_biases);
  wait_for_all();

  // 5. Its output, and the residual.
  stage(Down{}, nullptr, 0.f, [&](int i, float* to) { widen(__ldcg(reinterpret_cast<const uint4*>(gated) + i), to); });
  multiply(
      Down{}, down_w, down_scales, down_biases, down_ahead_packed, down_ahead_scales, down_ahead_biases,
      [&](int row) { return __bfloat162float(__ldcg(hidden + row)); },
      [&](int row, float* product, float residual) { y[row] = __float2bfloat16(residual + round(product[0])); });
  #undef STRIPS
  #undef PARTS
  #undef CHUNKS
  #undef FLUSHED
  #undef EVEN
  #undef OF_EACH
  #undef AT_ONCE
  #undef SCALED
  #undef TIMES
  #undef AHEAD_OF
