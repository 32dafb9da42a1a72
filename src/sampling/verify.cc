#include "sampling/verify.h"

namespace peregrine {
namespace {

// Calls visit(id, mass) for every token where weight * p exceeds q. Only tokens of p can, so q is
// walked alongside and its other tokens are passed over.
template <typename Visit>
void for_each_excess(double weight, const Distribution& p, const Distribution& q, Visit visit) {
  size_t j = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    while (j < q.size() && q.ids[j] < p.ids[i]) ++j;
    const bool shared = j < q.size() && q.ids[j] == p.ids[i];
    const double excess = weight * p.probabilities[i] - (shared ? q.probabilities[j] : 0.0);
    if (excess > 0.0) visit(p.ids[i], excess);
  }
}

VerifyResult verify_block(const DraftBlock& block, const VerifyUniforms& uniforms) {
  const size_t n = block.drafts.size();
  const BlockThresholds parts = block_thresholds(block);
  // The longest prefix whose own number says yes; a failed shorter one does not matter.
  size_t accepted = n;
  while (accepted > 0 && !(uniforms.accept[accepted - 1] < parts.threshold[accepted])) --accepted;
  const int32_t bonus =
      accepted == n ? sample(block.p[n], uniforms.bonus)
                    : sample(residual(parts.weight[accepted], block.p[accepted], block.q[accepted]),
                             uniforms.bonus);
  return {.accepted = static_cast<int>(accepted), .bonus = bonus};
}

VerifyResult verify_rejection(const DraftBlock& block, const VerifyUniforms& uniforms) {
  const size_t n = block.drafts.size();
  for (size_t i = 0; i < n; ++i) {
    const int32_t x = block.drafts[i];
    if (uniforms.accept[i] < carried_weight(1.0, block.p[i].at(x), block.q[i].at(x))) continue;
    return {.accepted = static_cast<int>(i),
            .bonus = sample(residual(1.0, block.p[i], block.q[i]), uniforms.bonus)};
  }
  return {.accepted = static_cast<int>(n), .bonus = sample(block.p[n], uniforms.bonus)};
}

}  // namespace

double carried_weight(double weight, double p, double q) {
  const double mass = weight * p;
  if (mass >= q) return mass > 0.0 ? 1.0 : 0.0;
  return mass / q;
}

double residual_mass(double weight, const Distribution& p, const Distribution& q) {
  double mass = 0.0;
  for_each_excess(weight, p, q, [&mass](int32_t, double excess) { mass += excess; });
  return mass;
}

Distribution residual(double weight, const Distribution& p, const Distribution& q) {
  Distribution result;
  for_each_excess(weight, p, q, [&result](int32_t id, double excess) { result.add(id, excess); });
  if (result.empty()) return p;
  result.normalise();
  return result;
}

BlockThresholds block_thresholds(const DraftBlock& block) {
  const size_t n = block.drafts.size();
  BlockThresholds parts{.weight = std::vector<double>(n + 1, 1.0),
                        .remaining = std::vector<double>(n + 1, 0.0),
                        .threshold = std::vector<double>(n + 1, 1.0)};
  for (size_t i = 1; i <= n; ++i) {
    const int32_t x = block.drafts[i - 1];
    const double weight =
        carried_weight(parts.weight[i - 1], block.p[i - 1].at(x), block.q[i - 1].at(x));
    parts.weight[i] = weight;
    if (i == n) {
      parts.threshold[i] = weight;
      break;
    }
    const double mass = residual_mass(weight, block.p[i], block.q[i]);
    const double denominator = mass + (1.0 - weight);
    parts.remaining[i] = mass;
    parts.threshold[i] = denominator > 0.0 ? mass / denominator : 1.0;
  }
  return parts;
}

VerifyResult verify(VerifyMethod method, const DraftBlock& block, const VerifyUniforms& uniforms) {
  return method == VerifyMethod::kBlock ? verify_block(block, uniforms)
                                        : verify_rejection(block, uniforms);
}

VerifyResult verify(VerifyMethod method, const DraftBlock& block, const DrawKey& key) {
  std::vector<double> accept(block.drafts.size());
  for (size_t i = 0; i < accept.size(); ++i) {
    accept[i] = draw_uniform(key, Purpose::kVerify, static_cast<uint32_t>(i));
  }
  return verify(method, block, {.accept = accept, .bonus = draw_uniform(key, Purpose::kBonus, 0)});
}

VerifyResult verify_greedy(std::span<const int32_t> best, std::span<const int32_t> drafts) {
  size_t accepted = 0;
  while (accepted < drafts.size() && drafts[accepted] == best[accepted]) ++accepted;
  return {.accepted = static_cast<int>(accepted), .bonus = best[accepted]};
}

}  // namespace peregrine
