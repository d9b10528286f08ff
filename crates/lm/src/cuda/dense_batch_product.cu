  // y[B, L, N] = x[B, L, K] times the transpose of a matrix w[N, K] in bfloat16, on tensor cores: up to eight rows of x share the read of
  // the matrix.
  //   ACTIVATION: w has 2 N rows, and y = activation(first half) * second half.  RESIDUAL: residual [B, L, N] is added to y.
  // A block computes 16 rows of the matrix (with ACTIVATION 16 of each half). Its warps take turns along K, 64 numbers at a time, with the
  // reads of AHEAD turns on their way, and add up their sums at the end.
  constexpr bool GATED = ACTIVATION != 0;
  constexpr int SPAN = 64, ROWS = 8, OUTPUTS = 16, STRIPS = GATED ? 2 : 1;
  static_assert(K % SPAN == 0);
  constexpr int VECTORS = K / 8, SPANS = K / SPAN;
  constexpr int TURNS = (SPANS + WARPS - 1) / WARPS;
  constexpr int MOST_AHEAD = GATED ? 1 : 2;
  constexpr int AHEAD = MOST_AHEAD < TURNS ? MOST_AHEAD : TURNS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int line = lane / 4, place = lane % 4; // of 8 lines and of 4 places in a tensor core's operand
  const int num_rows = x_shape[0] * x_shape[1];
  const int first_output = blockIdx.x * OUTPUTS;
  __shared__ float parts[WARPS][ROWS][OUTPUTS * STRIPS + 1];

  // Which numbers a product adds up in which order is free, so a lane takes the vectors `place` and `place + 4` of a span: its four
  // places read 64 consecutive bytes at a time.
  uint4 matrix[AHEAD][STRIPS][2][2], numbers[AHEAD][2]; // of lines 8 apart; and of the halves of a span
  auto read = [&](int turn, int to) {
    const int span = turn * WARPS + warp;
    if (span >= SPANS) return;
    #pragma unroll
    for (int word = 0; word < 2; ++word) {
      const int at = span * 8 + word * 4 + place;
      #pragma unroll
      for (int strip = 0; strip < STRIPS; ++strip) {
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
          const size_t output = min(first_output + half * 8 + line, N - 1) + strip * N;
          matrix[to][strip][half][word] = read_once(reinterpret_cast<const uint4*>(w) + output * VECTORS + at);
        }
      }
      numbers[to][word] = make_uint4(0, 0, 0, 0);
      if (line < num_rows) numbers[to][word] = __ldg(reinterpret_cast<const uint4*>(x) + size_t(line) * VECTORS + at);
    }
  };

  float sums[STRIPS][4] = {};
  #pragma unroll
  for (int i = 0; i < AHEAD; ++i) read(i, i);
  #pragma unroll 1 // the turns within are enough
  for (int turn = 0; turn < TURNS; turn += AHEAD) {
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if ((turn + i) * WARPS + warp >= SPANS) break;
      #pragma unroll
      for (int word = 0; word < 2; ++word) {
        const uint4 column = numbers[i][word];
        #pragma unroll
        for (int strip = 0; strip < STRIPS; ++strip) {
          const uint4 low = matrix[i][strip][0][word], high = matrix[i][strip][1][word];
          multiply_add(sums[strip], {low.x, high.x, low.y, high.y}, {column.x, column.y});
          multiply_add(sums[strip], {low.z, high.z, low.w, high.w}, {column.z, column.w});
        }
      }
      if (turn + i + AHEAD < TURNS) read(turn + i + AHEAD, i);
    }
  }

  #pragma unroll
  for (int strip = 0; strip < STRIPS; ++strip) {
    #pragma unroll
    for (int i = 0; i < 4; ++i) parts[warp][place * 2 + i % 2][strip * 16 + i / 2 * 8 + line] = sums[strip][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * OUTPUTS; i += WARPS * 32) {
    const int row = i / OUTPUTS, output = i % OUTPUTS;
    if (row >= num_rows || first_output + output >= N) continue;
    float sum[2] = {};
    #pragma unroll
    for (int other = 0; other < WARPS; ++other) {
      sum[0] += parts[other][row][output];
      if constexpr (GATED) sum[1] += parts[other][row][output + 16];
    }
    const size_t at = size_t(row) * N + first_output + output;
    float result = sum[0];
    if constexpr (GATED) result = activated<ACTIVATION>(result) * sum[1];
    if constexpr (RESIDUAL) result = __bfloat162float(residual[at]) + __bfloat162float(__float2bfloat16(result));
    y[at] = __float2bfloat16(result);
  }
