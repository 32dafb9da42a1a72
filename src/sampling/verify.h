// Verification of a drafted block (spec/speculation.md): how many drafts stand, and the token that
// follows them. The emitted tokens have exactly the distribution of plain sampling.
//
// Indices as in the specification: drafts x[0..n-1], q[i] the distribution x[i] was really drawn
// from, p[0..n] the model's processed distributions; p[i] is conditioned on x[0..i-1]. The same
// temperature, filters and penalties are applied to p as in plain decoding, while q may be
// anything. All arithmetic is in double; sparse distributions are merged, never filled in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "peregrine/generation.h"
#include "sampling/distribution.h"
#include "sampling/sampler.h"

namespace peregrine {

// What a verification step looks at; p has one row more than q and drafts.
struct DraftBlock {
  std::span<const Distribution> p;  // [n + 1]
  std::span<const Distribution> q;  // [n]
  std::span<const int32_t> drafts;  // [n]
};

// Independent uniform numbers in [0, 1). accept[i] decides draft i (rejection) or the prefix of
// i + 1 drafts (block).
struct VerifyUniforms {
  std::span<const double> accept;  // [n]
  double bonus = 0.0;
};

struct VerifyResult {
  int accepted = 0;   // drafts that stand, 0..n
  int32_t bonus = 0;  // the token after them; accepted + 1 tokens are emitted
};

VerifyResult verify(VerifyMethod method, const DraftBlock& block, const VerifyUniforms& uniforms);

// The same with the numbers of a step's key (purposes kVerify and kBonus).
VerifyResult verify(VerifyMethod method, const DraftBlock& block, const DrawKey& key);

// Greedy requests: drafts stand while they equal the model's argmax; best [n + 1] holds the
// argmax of every row, drafts [n]. The bonus token is the argmax after the accepted drafts.
VerifyResult verify_greedy(std::span<const int32_t> best, std::span<const int32_t> drafts);

// ---- the parts, as the literature names them ----------------------------------------------------

// min(1, weight * p / q) without dividing by zero: a token the model cannot emit gets 0 whatever
// the drafter thought, a token the drafter could not have drawn gets 1 otherwise.
double carried_weight(double weight, double p, double q);

// Block verification, equations (4) and (5) of Sun et al. 2024 (arXiv 2403.10444). Entry i
// belongs to the prefix of i drafts; entry 0 is weight 1, mass 0 and threshold 1.
struct BlockThresholds {
  std::vector<double> weight;     // [n + 1]
  std::vector<double> remaining;  // [n + 1], 0 at index n
  std::vector<double> threshold;  // [n + 1]; 0 / 0 counts as 1
};
BlockThresholds block_thresholds(const DraftBlock& block);

// sum over v of max(weight * p[v] - q[v], 0)
double residual_mass(double weight, const Distribution& p, const Distribution& q);

// max(weight * p - q, 0) normalised, or p where that has no mass.
Distribution residual(double weight, const Distribution& p, const Distribution& q);

}  // namespace peregrine
