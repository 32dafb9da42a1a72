// The decisions behind `--draft auto`: whether a drafter pass is worth its time, and how many of
// its drafts are worth verifying. Pure arithmetic over measured times; the engine measures and
// asks.
//
// Everything is counted in tokens: a time costs the tokens that the machine would have made in it
// without these drafts. A pass that costs c and makes sure of e tokens gains e - c.
//
// An answer drafts while its recent passes promise a gain, by the drafter's own confidences (far
// less noisy than counting what was accepted), corrected by how often they proved right, in this
// answer and in all. Where they
// promise none, or nothing is known yet, a pass is an experiment, paid from an allowance that all
// answers of a model share: a fixed small share of the time flows in, what experiments lose flows
// out, what they win comes back. So the price of looking is bounded whatever the text does.
#pragma once

#include <array>

#include "peregrine/generation.h"
#include "sampling/step_times.h"

namespace peregrine {

// What drafting costs now, in tokens.
struct DraftPrices {
  double pass = 0;                           // of a drafter pass
  std::array<double, kMaxDrafts> rows = {};  // of verifying the draft of each slot
};

// The prices of verifying up to `drafts` drafts in a step that has `rows` rows without them, on a
// machine that makes so many tokens in a microsecond. A slot's price is the least mean price of the
// slots from it on to any later one: rows may get cheaper by number, and a block that would pay as
// a whole must not end at its first row.
DraftPrices draft_prices(const StepTimes& times, int rows, int drafts, double tokens_per_us,
                         double pass);

// One drafter pass with the step that verified its drafts.
struct DraftPass {
  double expected = 0;  // drafts expected to stand: the sum of the survivals of the verified ones
  int accepted = 0;     // that stood
  double cost = 0;      // of pass and step, in tokens; a step without drafts costs 1
};

// Drafts that were expected to stand and that stood, of late.
struct DraftTally {
  double stood = 0, expected = 0;
  void add(const DraftPass& pass);
};

// What all answers of one model on one machine share.
class DraftLedger {
 public:
  DraftLedger();

  StepTimes step_times;  // of decoding steps, by rows
  StepTimes pass_times;  // of drafter passes, by sequences, in steps of one row

  // Time passed that is worth so many tokens.
  void earn(double tokens);
  bool affords(double tokens) const { return allowance_ >= tokens; }
  void settle(double gain);  // of a pass

  // Drafts that stand for each one that the confidences promise, of late.
  double calibration() const { return tally_.stood / tally_.expected; }
  void calibrate(const DraftPass& pass) { tally_.add(pass); }

 private:
  double allowance_;
  DraftTally tally_;
};

// What one answer has learned.
class DraftChoice {
 public:
  DraftChoice();

  // Whether to run the drafter for the next step.
  bool worthwhile(const DraftLedger& ledger, const DraftPrices& prices) const;

  // The draft of a slot is worth its row while its survival is at least this: the row's price at
  // the rate the answer runs at, drafts included. Experiments also look at what would not pay by
  // prices that may be out of date. Decided slot by slot, so that verification stays lossless.
  double threshold(const DraftPrices& prices, int slot) const;

  void record(const DraftPass& pass, DraftLedger& ledger);

 private:
  bool trusted() const;

  int passes_ = 0;
  double tokens_, cost_;  // expected of the last passes and spent on them
  DraftTally tally_;      // of this answer
};

}  // namespace peregrine
