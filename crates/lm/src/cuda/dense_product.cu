  // y[N] = x[K] times the transpose of a matrix w[N, K] in bfloat16.
  //   NORM: x is first RMS-normalized with norm_weight.  ACTIVATION: w has 2 N rows, and y = activation(first half) * second half.
  //   RESIDUAL: residual is added to y.
  // Each warp computes ROWS outputs; each lane reads eight numbers of a row at a time, so that a warp reads 512 consecutive bytes.
  //
  // Memory is busy as long as enough reads are on their way: LOADS of 16 bytes for each lane, from before x is normalized until the row
  // ends. So the first AHEAD turns of a warp are read before anything is waited for, and each turn that was used makes room for one more.
  static_assert(K % 8 == 0);
  constexpr bool GATED = ACTIVATION != 0;
  constexpr int HALVES = GATED ? 2 : 1;
  constexpr int THREADS = WARPS * 32;
  constexpr int VECTORS = K / 8; // of 16 bytes in a row
  constexpr int TURNS = (VECTORS + 31) / 32; // of a warp along a row
  constexpr bool HAS_NO_REST = VECTORS % 32 == 0; // every lane has a vector in every turn
  constexpr int LOADS = 8;
  constexpr int AHEAD = LOADS / (HALVES * ROWS) < TURNS ? LOADS / (HALVES * ROWS) : TURNS;
  static_assert(AHEAD > 0);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = (blockIdx.x * WARPS + warp) * ROWS;
  __shared__ uint4 staged[VECTORS];

  // The vector of each row that is a lane's in a turn. A warp without outputs reads the last row with the others.
  auto read = [&](int turn, uint4 (&to)[HALVES][ROWS]) {
    const int at = turn * 32 + lane;
    if (!HAS_NO_REST && at >= VECTORS) return;
    #pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const size_t row = min(first + r, N - 1) + half * N;
        to[half][r] = read_once(reinterpret_cast<const uint4*>(w) + row * VECTORS + at);
      }
    }
  };
  uint4 ahead[AHEAD][HALVES][ROWS];
  #pragma unroll
  for (int i = 0; i < AHEAD; ++i) read(i, ahead[i]);
  __syncwarp(); // without it, the compiler asks for x first, which these do not wait for

  // x moves to shared memory.
  constexpr int OWN = (VECTORS + THREADS - 1) / THREADS; // vectors of each thread
  const uint4* source = reinterpret_cast<const uint4*>(x);
  if constexpr (NORM) {
    uint4 numbers_of[OWN], weights_of[OWN];
    #pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int at = threadIdx.x + i * THREADS;
      numbers_of[i] = at < VECTORS ? source[at] : uint4{};
      weights_of[i] = at < VECTORS ? reinterpret_cast<const uint4*>(norm_weight)[at] : uint4{};
    }
    __shared__ float squares[WARPS];
    float square = 0.f;
    #pragma unroll
    for (int i = 0; i < OWN; ++i) {
      float numbers[8];
      widen(numbers_of[i], numbers);
      #pragma unroll
      for (int j = 0; j < 8; ++j) square += numbers[j] * numbers[j];
    }
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
    if (lane == 0) squares[warp] = square;
    __syncthreads();
    float sum = 0.f;
    for (int i = 0; i < WARPS; ++i) sum += squares[i];
    const float inverse = rsqrtf(sum / K + __int_as_float(EPS_BITS));
    #pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int at = threadIdx.x + i * THREADS;
      float numbers[8], weights[8];
      widen(numbers_of[i], numbers);
      widen(weights_of[i], weights);
      __nv_bfloat162 pairs[4];
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        pairs[j] = __floats2bfloat162_rn(numbers[2 * j] * inverse * weights[2 * j], numbers[2 * j + 1] * inverse * weights[2 * j + 1]);
      }
      if (at < VECTORS) staged[at] = *reinterpret_cast<uint4*>(pairs);
    }
  } else {
    #pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int at = threadIdx.x + i * THREADS;
      if (at < VECTORS) staged[at] = source[at];
    }
  }
  __syncthreads();
  if (first >= N) return;

  float sums[HALVES][ROWS] = {};
  #pragma unroll 1 // the turns within are enough
  for (int turn = 0; turn < TURNS; turn += AHEAD) {
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int at = (turn + i) * 32 + lane;
      if (HAS_NO_REST && TURNS % AHEAD == 0 || at < VECTORS) {
        float numbers[8];
        widen(staged[at], numbers);
        #pragma unroll
        for (int half = 0; half < HALVES; ++half) {
          #pragma unroll
          for (int r = 0; r < ROWS; ++r) {
            float weights[8];
            widen(ahead[i][half][r], weights);
            #pragma unroll
            for (int j = 0; j < 8; ++j) sums[half][r] += numbers[j] * weights[j];
          }
        }
      }
      if (turn + i + AHEAD < TURNS) read(turn + i + AHEAD, ahead[i]);
    }
  }
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    #pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      for (int step = 16; step > 0; step /= 2) sums[half][r] += __shfl_xor_sync(0xffffffff, sums[half][r], step);
    }
    if (lane == 0 && first + r < N) {
      float result = sums[0][r];
      if constexpr (GATED) result = activated<ACTIVATION>(result) * sums[HALVES - 1][r];
      if constexpr (RESIDUAL) result = __bfloat162float(residual[first + r]) + __bfloat162float(__float2bfloat16(result));
      y[first + r] = __float2bfloat16(result);
    }
  }
