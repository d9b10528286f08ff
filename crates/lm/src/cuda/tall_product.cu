  // y[N] = x[K] times the transpose of a 4-bit matrix of many rows, as that of a vocabulary, whose value is scale * q + bias by groups along K.
  //
  // product.cu unpacks each number with three instructions, which takes longer than reading it once every warp has as much as it can read.
  // Here tensor cores take packed numbers almost as they are, see strip_product.cuh. A warp computes a strip of 16 rows; the warps of a block
  // share the vector in shared memory.
  constexpr int FLUSHED = NUM_COLUMNS * GROUP / CHUNK; // chunks whose groups are all in columns of their own
  constexpr int CHUNKS = (K + CHUNK - 1) / CHUNK, NUM_GROUPS = K / GROUP;
  constexpr bool FILLS_ROWS = K % (FLUSHED * CHUNK) == 0;
  static_assert(K % 64 == 0 && K % GROUP == 0 && N % 16 == 0);
  constexpr int ZEROS = K / 8;
  __shared__ uint4 staged[ZEROS + 4]; // the last four are zeros
  __shared__ float totals[NUM_GROUPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x < 4) staged[ZEROS + threadIdx.x] = uint4{};
  stage<K, GROUP, WARPS * 32, false>(staged, totals, nullptr, 0.f, [&](int i, float* to) { widen(reinterpret_cast<const uint4*>(x)[i], to); });

  const int strip = blockIdx.x * WARPS + warp;
  if (strip >= N / 16) return;
  const int row = strip * 16 + lane / 4;
  const uint4* own = reinterpret_cast<const uint4*>(w) + row * (K / 32) + lane % 4;
  float row_sums[2] = {};
  #pragma unroll 1 // what two turns would hold costs more than it hides
  for (int from = 0; from < CHUNKS; from += FLUSHED) {
    uint4 packed[FLUSHED][2];
    #pragma unroll
    for (int i = 0; i < FLUSHED; ++i) {
      const bool is_there = FILLS_ROWS || (from + i) * CHUNK + lane % 4 * 32 < K;
      #pragma unroll
      for (int half = 0; half < 2; ++half)
        packed[i][half] = is_there ? read_once(own + (from + i) * (CHUNK / 32) + 8 * half * (K / 32)) : uint4{};
    }
    const int group = from * CHUNK / GROUP + lane % 4 * 2; // of this lane's first column
    Value scale[2][2], bias[2][2];
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = (row + 8 * half) * NUM_GROUPS + group;
      if constexpr (NUM_GROUPS % 2 == 0) {
        const bool is_there = FILLS_ROWS || group < NUM_GROUPS;
        reinterpret_cast<uint32_t&>(scale[half]) = is_there ? __ldg(reinterpret_cast<const uint32_t*>(scales + at)) : 0;
        reinterpret_cast<uint32_t&>(bias[half]) = is_there ? __ldg(reinterpret_cast<const uint32_t*>(biases + at)) : 0;
      } else {
        #pragma unroll
        for (int column = 0; column < 2; ++column) {
          scale[half][column] = group + column < NUM_GROUPS ? scales[at + column] : Value{};
          bias[half][column] = group + column < NUM_GROUPS ? biases[at + column] : Value{};
        }
      }
    }
    float sums[4] = {};
    #pragma unroll
    for (int i = 0; i < FLUSHED; ++i) {
      const int chunk = from + i, own_group = (chunk * CHUNK + lane % 4 * 32) / GROUP;
      const bool is_own = own_group % NUM_COLUMNS == lane / 4 && (FILLS_ROWS || own_group < NUM_GROUPS);
      add_chunk(sums, packed[i][0], packed[i][1], staged + (is_own ? chunk * (CHUNK / 8) + lane % 4 * 4 : ZEROS));
    }
    #pragma unroll
    for (int column = 0; column < 2; ++column) {
      if (FILLS_ROWS || group + column < NUM_GROUPS) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) row_sums[half] += scaled(sums[2 * half + column], scale[half][column], bias[half][column], totals[group + column]);
      }
    }
  }
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    row_sums[half] += __shfl_xor_sync(0xffffffff, row_sums[half], 1);
    row_sums[half] += __shfl_xor_sync(0xffffffff, row_sums[half], 2);
    if (lane % 4 == 0) y[row + 8 * half] = __float2bfloat16(row_sums[half]);
  }
