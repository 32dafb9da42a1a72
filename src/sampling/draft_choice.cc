#include "sampling/draft_choice.h"

#include <algorithm>

namespace peregrine {
namespace {

// Share of the time that may go to experiments.
constexpr double kAllowanceShare = 0.01;
// Saved up for them at most, and owed at most, in tokens.
constexpr double kAllowanceMost = 4;
constexpr double kDebtMost = 0.25;
constexpr double kExperimentThreshold = 0.3;
// An answer remembers some ten passes and starts as if drafts had paid for so many tokens: a pass
// that nearly pays does not end it, one without a single likely draft does.
constexpr double kPassMemory = 0.9;
constexpr double kPassPrior = 10;
// Passes that gain nothing, within what can be told from noise, go on: the loss is smaller than
// that of leaving a text whose drafts are good.
constexpr double kTolerance = 0.97;
// The calibration remembers some fifty passes and starts as if ten expected drafts had stood.
constexpr double kCalibrationMemory = 0.98;
constexpr double kCalibrationPrior = 10;
// Expected drafts of an answer that count as much as what all answers say.
constexpr double kAnswerPrior = 4;

}  // namespace

DraftPrices draft_prices(const StepTimes& times, int rows, int drafts, double tokens_per_us,
                         double pass) {
  std::array<double, kMaxDrafts + 1> us;  // of the step with so many drafts
  for (int i = 0; i <= drafts; ++i) us[static_cast<size_t>(i)] = times.estimate(rows + i);
  DraftPrices prices{.pass = pass};
  for (size_t slot = 0; slot < static_cast<size_t>(drafts); ++slot) {
    double least = us[slot + 1] - us[slot];
    for (size_t last = slot + 1; last < static_cast<size_t>(drafts); ++last)
      least = std::min(least, (us[last + 1] - us[slot]) / static_cast<double>(last + 1 - slot));
    prices.rows[slot] = std::max(0.0, least * tokens_per_us);
  }
  return prices;
}

DraftLedger::DraftLedger()
    : allowance_(kAllowanceMost), tally_{kCalibrationPrior, kCalibrationPrior} {}

void DraftLedger::earn(double tokens) {
  allowance_ = std::min(allowance_ + kAllowanceShare * tokens, kAllowanceMost);
}

void DraftLedger::settle(double gain) {
  allowance_ = std::clamp(allowance_ + gain, -kDebtMost, kAllowanceMost);
}

void DraftTally::add(const DraftPass& pass) {
  stood = kCalibrationMemory * stood + pass.accepted;
  expected = kCalibrationMemory * expected + pass.expected;
}

DraftChoice::DraftChoice() : tokens_(kPassPrior), cost_(kPassPrior) {}

bool DraftChoice::trusted() const { return passes_ > 0 && tokens_ > kTolerance * cost_; }

bool DraftChoice::worthwhile(const DraftLedger& ledger, const DraftPrices& prices) const {
  return trusted() || ledger.affords(prices.pass);
}

double DraftChoice::threshold(const DraftPrices& prices, int slot) const {
  const double row = prices.rows[static_cast<size_t>(slot)];
  if (!trusted()) return std::min(kExperimentThreshold, row);
  return std::min(1.0, row * tokens_ / cost_);
}

void DraftChoice::record(const DraftPass& pass, DraftLedger& ledger) {
  ledger.calibrate(pass);
  tally_.add(pass);
  const double calibration =
      (tally_.stood + kAnswerPrior * ledger.calibration()) / (tally_.expected + kAnswerPrior);
  const double tokens = 1 + calibration * pass.expected;
  ledger.settle(tokens - pass.cost);
  tokens_ = kPassMemory * tokens_ + tokens;
  cost_ = kPassMemory * cost_ + pass.cost;
  ++passes_;
}

}  // namespace peregrine
