  // y[L, D]: of each token its row of a 4-bit matrix, whose value is scale * q + bias by groups along D. A block for each token.
  const size_t row = tokens[blockIdx.x];
  for (int i = threadIdx.x; i < D / 8; i += THREADS) {
    const uint32_t word = w[row * (D / 8) + i];
    const size_t group = row * (D / GROUP) + i * 8 / GROUP;
    const float scale = __bfloat162float(scales[group]), bias = __bfloat162float(biases[group]);
    __nv_bfloat162 pairs[4];
    #pragma unroll
    for (int j = 0; j < 4; ++j)
      pairs[j] = __floats2bfloat162_rn(scale * (word >> (8 * j) & 15) + bias, scale * (word >> (8 * j + 4) & 15) + bias);
    reinterpret_cast<uint4*>(y)[size_t(blockIdx.x) * (D / 8) + i] = *reinterpret_cast<uint4*>(pairs);
  }
