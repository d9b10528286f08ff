  // y[D] = residual[D] + the RMS norm of x[D] with weight[D]. One block.
  __shared__ float squares[8];
  float square = 0.f;
  for (int i = threadIdx.x; i < D / 8; i += 256) {
    float numbers[8];
    widen(reinterpret_cast<const uint4*>(x)[i], numbers);
    #pragma unroll
    for (int j = 0; j < 8; ++j) square += numbers[j] * numbers[j];
  }
  for (int step = 16; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffff, square, step);
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = square;
  __syncthreads();
  float sum = 0.f;
  for (int i = 0; i < 8; ++i) sum += squares[i];
  const float inverse = rsqrtf(sum / D + __int_as_float(EPS_BITS));
  for (int i = threadIdx.x; i < D / 8; i += 256) {
    float numbers[8], weights[8], before[8];
    widen(reinterpret_cast<const uint4*>(x)[i], numbers);
    widen(reinterpret_cast<const uint4*>(weight)[i], weights);
    widen(reinterpret_cast<const uint4*>(residual)[i], before);
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float normed = __bfloat162float(__float2bfloat16(numbers[j] * inverse * weights[j]));
      y[i * 8 + j] = __float2bfloat16(before[j] + normed);
    }
  }
