// How many drafted slots are worth verifying, by the drafter's own confidence
// (spec/speculation.md, Drafting 3).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace peregrine {

// The chance that a prefix survives with one more draft, from the chance without it and the raw
// confidence score of that draft's slot: survival * sigmoid(score). Start with 1.
double extend_survival(double survival, float score);

// survival[i] = sigmoid(scores[0]) * .. * sigmoid(scores[i]): the estimated chance that drafts
// 0..i are all accepted. `scores` are the raw outputs of the confidence head, one a slot.
std::vector<double> survival_from_scores(std::span<const float> scores);

// How many of the first `count` drafts are expected to stand: the sum of their survivals.
double expected_drafts(std::span<const float> scores, int count);

// The threshold that applies at `slot` of a block of `slots`: with three or more slots the last
// two use half and a quarter.
double slot_threshold(int slot, int slots, double threshold);

// Number of slots before the first whose survival is below its threshold, 0..n. Slot i's decision
// depends on scores 0..i only, that is on drafts before i: verification stays lossless.
int draft_length(std::span<const float> scores, double threshold);

// How many drafts of each block to verify when all blocks together may have at most `budget`: those
// with the highest survival; equals go to the earlier block. `survival` [blocks] of drafts, each
// falling along its block, so that the best of a block are its first.
std::vector<size_t> share_draft_rows(std::span<const std::vector<double>> survival, size_t budget);

}  // namespace peregrine
