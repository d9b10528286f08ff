  // y[B, L, N] = x[B, L, K] times the transpose of a 4-bit matrix of N rows, whose value is scale * q + bias by groups along K, on tensor
  // cores: 8 TILES rows of x share each read of the matrix.
  //   ACTIVATION: the matrix has 2 N rows, and y = activation(first half) * second half.  RESIDUAL: residual [B, L, N] is added to y.
  // A block computes 16 STRIPS rows of the matrix (with ACTIVATION 16 of each half) with 8 TILES rows of x. Its warps take turns along K, 64
  // numbers at a time, and add up their sums at the end.
  constexpr bool GATED = ACTIVATION != 0;
  constexpr int SPAN = 64, SUMS = 16 * STRIPS, OUTPUTS = GATED ? 16 : SUMS, ROWS = 8 * TILES;
  static_assert(!GATED || STRIPS == 2);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int line = lane / 4, place = lane % 4; // of 8 lines and of 4 places in a tensor core's operand
  const int num_rows = x_shape[0] * x_shape[1];
  const int first_output = blockIdx.x * OUTPUTS, first_row = blockIdx.y * ROWS;
  __shared__ float parts[WARPS][ROWS][SUMS + 1];

  float sums[STRIPS][TILES][4] = {};
  #pragma unroll 1 // what two turns would hold costs more than it hides: half as many blocks fit on a multiprocessor
  for (int span = warp; span < K / SPAN; span += WARPS) {
    // Which numbers a product adds up in which order is free, so every lane takes 16 that stand side by side.
    uint2 packed[STRIPS][2];
    __nv_bfloat162 scale[STRIPS][2], bias[STRIPS][2];
    #pragma unroll
    for (int strip = 0; strip < STRIPS; ++strip) {
      #pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int within = min(first_output + (GATED ? 0 : strip * 16) + half * 8 + line, N - 1);
        const size_t output = within + (GATED ? strip * N : 0);
        const size_t group = output * (K / GROUP) + (span * SPAN + place * 16) / GROUP;
        packed[strip][half] = __ldg(reinterpret_cast<const uint2*>(w) + output * (K / 16) + span * 4 + place);
        scale[strip][half] = __bfloat162bfloat162(scales[group]);
        bias[strip][half] = __bfloat162bfloat162(biases[group]);
      }
    }
    uint4 numbers[TILES][2];
    #pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      const int row = first_row + tile * 8 + line;
      #pragma unroll
      for (int word = 0; word < 2; ++word) {
        numbers[tile][word] = make_uint4(0, 0, 0, 0);
        if (row < num_rows) numbers[tile][word] = reinterpret_cast<const uint4*>(x)[size_t(row) * (K / 8) + span * 8 + place * 2 + word];
      }
    }
    #pragma unroll
    for (int word = 0; word < 2; ++word) {
      #pragma unroll
      for (int quarter = 0; quarter < 2; ++quarter) {
        // Of a word's 8 numbers, the pairs (0, 4) and (1, 5), then (2, 6) and (3, 7): two a mask apart, as they come out of the word.
        uint32_t columns[TILES][2];
        #pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          const uint4 eight = numbers[tile][word];
          const uint32_t low = quarter ? eight.y : eight.x, high = quarter ? eight.w : eight.z;
          columns[tile][0] = __byte_perm(low, high, 0x5410);
          columns[tile][1] = __byte_perm(low, high, 0x7632);
        }
        #pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip) {
          uint32_t weights[4];
          #pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int half = i % 2, pair = quarter * 2 + i / 2;
            const uint32_t source = word ? packed[strip][half].y : packed[strip][half].x;
            const uint32_t raised = raised_pair(source, pair);
            const __nv_bfloat162 both = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&raised), __float2bfloat162_rn(128.f));
            const __nv_bfloat162 weight = __hfma2(both, scale[strip][half], bias[strip][half]);
            weights[i] = *reinterpret_cast<const uint32_t*>(&weight);
          }
          #pragma unroll
          for (int tile = 0; tile < TILES; ++tile) multiply_add(sums[strip][tile], weights, columns[tile]);
        }
      }
    }
  }

  #pragma unroll
  for (int strip = 0; strip < STRIPS; ++strip) {
    #pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      #pragma unroll
      for (int i = 0; i < 4; ++i) parts[warp][tile * 8 + place * 2 + i % 2][strip * 16 + i / 2 * 8 + line] = sums[strip][tile][i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * OUTPUTS; i += WARPS * 32) {
    const int row = i / OUTPUTS, output = i % OUTPUTS;
    if (first_row + row >= num_rows || first_output + output >= N) continue;
    float sum[2] = {};
    #pragma unroll
    for (int other = 0; other < WARPS; ++other) {
      sum[0] += parts[other][row][output];
      if constexpr (GATED) sum[1] += parts[other][row][output + 16];
    }
    const size_t at = size_t(first_row + row) * N + first_output + output;
    float result = sum[0];
    if constexpr (GATED) result = activated<ACTIVATION>(result) * sum[1];
    if constexpr (RESIDUAL) result = __bfloat162float(residual[at]) + __bfloat162float(__float2bfloat16(result));
    y[at] = __float2bfloat16(result);
  }
