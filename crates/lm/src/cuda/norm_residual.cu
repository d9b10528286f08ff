  // y[D] = residual[D] + the RMS norm of x[D] with weight[D]. One block.
  __shared__ float squares[8];
  auto widen = [](uint4 raw, float* to) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  };
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
