// The coefficients of one hyper-connection half (spec: model.md 5.3, steps 4 to 6), apart from the
// operation so that recorded mixes can be put through it.
#pragma once

namespace peregrine::reference {

struct HcShape {
  int copies = 0;  // n
  int sinkhorn_iterations = 0;
  float eps = 0;
};

// mixes, base [(2 + n) * n] and scale [3] -> pre [n], post [n], comb [n, n], all f32.
void hc_coefficients(const HcShape& shape, const float* mixes, const float* scale,
                     const float* base, float* pre, float* post, float* comb);

}  // namespace peregrine::reference
