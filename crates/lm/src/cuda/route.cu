  // The CHOSEN likeliest of E experts and their shares: softmax probabilities over all experts or, with NORMALIZED, over those chosen.
  // One warp. Of equal logits the first comes first.
  __shared__ float remaining[E];
  const int lane = threadIdx.x;
  float highest = -INFINITY;
  for (int i = lane; i < E; i += 32) {
    remaining[i] = __bfloat162float(logits[i]);
    highest = fmaxf(highest, remaining[i]);
  }
  for (int step = 16; step > 0; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, step));
  float total = 0.f;
  for (int i = lane; i < E; i += 32) total += __expf(remaining[i] - highest);
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffff, total, step);

  float mine = 0.f, sum = 0.f; // lane k keeps the share of the k-th expert
  for (int k = 0; k < CHOSEN; ++k) {
    float best = -INFINITY;
    int at = E;
    for (int i = lane; i < E; i += 32) {
      if (remaining[i] > best) {
        best = remaining[i];
        at = i;
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xffffffff, best, step);
      const int other_at = __shfl_xor_sync(0xffffffff, at, step);
      if (other > best || (other == best && other_at < at)) {
        best = other;
        at = other_at;
      }
    }
    at = min(at, E - 1); // where no logit is a number, any expert will do
    const float share = __expf(best - highest) / total;
    sum += share;
    if (lane == k) {
      mine = share;
      experts[k] = at;
    }
    __syncwarp();
    if (lane == 0) remaining[at] = -INFINITY;
    __syncwarp();
  }
  if (lane < CHOSEN) shares[lane] = NORMALIZED ? mine / sum : mine;
