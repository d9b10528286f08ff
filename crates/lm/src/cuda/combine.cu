  // Combines the SPLITS parts of attention.cu; one block for each query head.
  const size_t index = blockIdx.x;
  const float* part = parts + index * SPLITS * (D + 2);
  float highest = -1e30f;
  for (int i = 0; i < SPLITS; ++i) highest = fmaxf(highest, part[i * (D + 2) + D]);
  float total = 0.f, sum = 0.f;
  for (int i = 0; i < SPLITS; ++i) {
    const float shrink = exp2f(part[i * (D + 2) + D] - highest);
    total += part[i * (D + 2) + D + 1] * shrink;
    sum += part[i * (D + 2) + threadIdx.x] * shrink;
  }
  y[index * D + threadIdx.x] = __float2bfloat16(sum / total);
