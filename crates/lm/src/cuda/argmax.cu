  // y[B]: where the largest number of each row of logits[B, V] is, the first one of several that are equal. A block for each row, whose
  // threads read AHEAD times eight numbers at once.
  constexpr int WARPS = THREADS / 32, VECTORS = V / 8, AHEAD = 8;
  static_assert(V % 8 == 0 && VECTORS >= THREADS && WARPS <= 32);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint4* numbers = reinterpret_cast<const uint4*>(logits) + size_t(blockIdx.x) * VECTORS;
  auto largest = [](uint4 raw) {
    auto pair = [](uint32_t word) { return *reinterpret_cast<const __nv_bfloat162*>(&word); };
    const __nv_bfloat162 both = __hmax2(__hmax2(pair(raw.x), pair(raw.y)), __hmax2(pair(raw.z), pair(raw.w)));
    return fmaxf(__low2float(both), __high2float(both));
  };

  float best = __int_as_float(0xff800000); // minus infinity
  int place = threadIdx.x; // of the eight numbers with the largest
  for (int from = threadIdx.x; from < VECTORS; from += THREADS * AHEAD) {
    uint4 raw[AHEAD];
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) raw[i] = __ldg(numbers + min(from + i * THREADS, VECTORS - 1));
    #pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const float number = largest(raw[i]);
      if (number > best) {
        best = number;
        place = min(from + i * THREADS, VECTORS - 1);
      }
    }
  }

  auto take_better = [&](float number, int other) {
    if (number > best || (number == best && other < place)) {
      best = number;
      place = other;
    }
  };
  auto reduce_warp = [&]() {
    for (int step = 16; step > 0; step /= 2) take_better(__shfl_xor_sync(0xffffffff, best, step), __shfl_xor_sync(0xffffffff, place, step));
  };
  __shared__ float bests[WARPS];
  __shared__ int places[WARPS];
  reduce_warp();
  if (lane == 0) {
    bests[warp] = best;
    places[warp] = place;
  }
  __syncthreads();
  if (warp > 0) return;
  best = bests[lane % WARPS];
  place = places[lane % WARPS];
  reduce_warp();
  if (lane == 0) {
    float eight[8];
    widen(numbers[place], eight);
    int within = 0;
    while (within < 7 && eight[within] != best) ++within;
    y[blockIdx.x] = place * 8 + within;
  }
