  // y[N] = x[K] times the transpose of a 4-bit matrix of N rows, whose value is scale * q + bias by groups along K.
  //   NORM: x is first RMS-normalized with norm_weight.  ACTIVATION: the matrix has 2 N rows, and y = activation(first half) * second half.
  //   RESIDUAL: residual is added to y.
  //   EXPERTS: w has a matrix for each expert, of which experts[EXPERTS] are chosen. y[EXPERTS, N] are their products with x or, if BLENDED,
  //   x[EXPERTS, K / EXPERTS] has a row for each of them, and y[N] is the sum of their products, each times its share.
  // Each warp computes ROWS rows; each lane reads 32 numbers of a row at a time, so that a warp reads 512 consecutive bytes.
  constexpr bool GATED = ACTIVATION != 0;
  constexpr int SPAN = 32;
  constexpr int NUM_SPANS = K / SPAN;
  constexpr int PADDED = (NUM_SPANS + 31) / 32 * 32 * SPAN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __shared__ uint4 staged[PADDED / 8];
  __shared__ float totals[NUM_SPANS];

  const uint4* source = reinterpret_cast<const uint4*>(x);

  float inverse = 1.f;
  if constexpr (NORM) {
    __shared__ float squares[WARPS];
    float square = 0.f;
    for (int i = threadIdx.x; i < K / 8; i += WARPS * 32) {
      float numbers[8];
      widen(source[i], numbers);
      #pragma unroll
      for (int j = 0; j < 8; ++j) square += numbers[j] * numbers[j];
    }
    for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
    if (lane == 0) squares[warp] = square;
    __syncthreads();
    float sum = 0.f;
    for (int i = 0; i < WARPS; ++i) sum += squares[i];
    inverse = rsqrtf(sum / K + __int_as_float(EPS_BITS));
  }

  // x moves to shared memory, in an order that the lanes of a warp read without bank conflicts. Every number is divided by 16 to the power
  // of its place in its half word (exact in bfloat16), because below the packed numbers are not shifted down from there.
  for (int span = threadIdx.x; span < NUM_SPANS; span += WARPS * 32) {
    float total = 0.f;
    #pragma unroll
    for (int part = 0; part < 4; ++part) {
      float numbers[8];
      widen(source[span * 4 + part], numbers);
      if constexpr (NORM) {
        float weights[8];
        widen(reinterpret_cast<const uint4*>(norm_weight)[span * 4 + part], weights);
        #pragma unroll
        for (int j = 0; j < 8; ++j) numbers[j] = __bfloat162float(__float2bfloat16(numbers[j] * inverse * weights[j]));
      }
      __nv_bfloat162 pairs[4];
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        total += numbers[2 * j] + numbers[2 * j + 1];
        const float low = j % 2 ? 1.f / 256 : 1.f;
        pairs[j] = __floats2bfloat162_rn(numbers[2 * j] * low, numbers[2 * j + 1] * low / 16);
      }
      staged[span / 32 * 128 + part * 32 + span % 32] = *reinterpret_cast<uint4*>(pairs);
    }
    totals[span] = total;
  }
  __syncthreads();

  const int first = (blockIdx.x * WARPS + warp) * ROWS;
  if (first >= N) return;
  constexpr int HALVES = GATED ? 2 : 1;
  constexpr int MATRIX_SPANS = BLENDED ? NUM_SPANS / (EXPERTS > 0 ? EXPERTS : 1) : NUM_SPANS;
  float sums[HALVES][ROWS] = {};
  #pragma unroll UNROLL
  for (int span = lane; span < NUM_SPANS; span += 32) {
    const int place = BLENDED ? span / MATRIX_SPANS : blockIdx.y; // among the chosen experts
    const int within = BLENDED ? span % MATRIX_SPANS : span;
    size_t rows_before = 0;
    float share = 1.f;
    if constexpr (EXPERTS > 0) rows_before = size_t(experts[place]) * HALVES * N;
    if constexpr (BLENDED) share = shares[place];
    uint4 packed[HALVES][ROWS];
    float scale[HALVES][ROWS], bias[HALVES][ROWS];
    #pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const size_t row = rows_before + (first + r + half * N);
        const size_t group = row * (MATRIX_SPANS * SPAN / GROUP) + within * SPAN / GROUP;
        packed[half][r] = __ldg(reinterpret_cast<const uint4*>(w) + row * MATRIX_SPANS + within);
        scale[half][r] = share * __bfloat162float(scales[group]);
        bias[half][r] = share * __bfloat162float(biases[group]);
      }
    }
    float dots[HALVES][ROWS] = {};
    #pragma unroll
    for (int part = 0; part < 4; ++part) {
      float numbers[8];
      widen(staged[span / 32 * 128 + part * 32 + lane], numbers);
      #pragma unroll
      for (int half = 0; half < HALVES; ++half) {
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          const uint32_t word = part == 0 ? packed[half][r].x : part == 1 ? packed[half][r].y : part == 2 ? packed[half][r].z : packed[half][r].w;
          #pragma unroll
          for (int j = 0; j < 8; ++j) {
            // A number in the low bits of 2^23's mantissa: one logical operation and one subtraction make it a float.
            const uint32_t bits = (j < 4 ? word : word >> 16) & (0xfu << (4 * (j % 4)));
            dots[half][r] += numbers[j] * (__uint_as_float(bits | 0x4b000000u) - 8388608.f);
          }
        }
      }
    }
    #pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      #pragma unroll
      for (int r = 0; r < ROWS; ++r) sums[half][r] += scale[half][r] * dots[half][r] + bias[half][r] * totals[span];
    }
  }
  #pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    #pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      for (int step = 16; step > 0; step /= 2) sums[half][r] += __shfl_xor_sync(0xffffffff, sums[half][r], step);
    }
    if (lane == 0) {
      float result = sums[0][r];
      if constexpr (ACTIVATION == 1) result = result / (1.f + __expf(-result)) * sums[HALVES - 1][r];
      if constexpr (ACTIVATION == 2) {
        // GELU's (1 + tanh(z)) / 2 is the sigmoid of 2 z.
        const float z = 1.5957691216f * (result + 0.044715f * result * result * result);
        result = result / (1.f + __expf(-z)) * sums[HALVES - 1][r];
      }
      if constexpr (RESIDUAL) result = __bfloat162float(residual[first + r]) + __bfloat162float(__float2bfloat16(result));
      y[(EXPERTS > 0 && !BLENDED ? blockIdx.y * N : 0) + first + r] = __float2bfloat16(result);
    }
  }
