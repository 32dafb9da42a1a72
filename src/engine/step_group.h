// How the engines of several ranks agree on what kind of step comes next.
//
// Ranks that exchange rows inside a step must run the same kind of step at the same time, or their
// collectives would not meet. The loop of every rank therefore asks its StepGroup twice a round:
// before planning what may be planned, and after it what runs. Each call meets the same call on all
// other ranks. An engine without a group plans alone.
//
// A group may also spread the requests of one engine over all of them: its RequestCourier.
#pragma once

#include <memory>
#include <vector>

#include "peregrine/engine.h"

namespace peregrine {

struct Sequence;

enum class StepKind {
  kIdle,     // no rank has anything to run
  kWait,     // nothing can run now, but some rank has a prompt: the next round comes at once
  kDecode,   // no rank runs prompt rows
  kPrefill,  // ranks run prompt rows beside decoding ones; a rank without any takes part all the
             // same
  kStop,     // every rank is done: the last round
};

// What one rank would like to run.
struct StepWish {
  bool prefill = false;  // a prompt waits or is half read
  bool decode = false;   // a sequence decodes
  bool done = false;     // nothing is left and nothing will come
};

// Takes requests to other ranks' engines and hands on their events; called by the engine's thread
// alone, but for others(). Events come during a vote.
class RequestCourier {
 public:
  virtual ~RequestCourier() = default;

  // Whether another rank runs the request, which is then the courier's. `requests_here`: of this
  // engine, running and waiting.
  virtual bool send(std::unique_ptr<Sequence>& sequence, int requests_here) = 0;
  virtual bool cancel(RequestId id) = 0;  // false: not one that it took
  virtual void cancel_all() = 0;
  virtual int take_ended() = 0;   // requests that have ended since the last call
  virtual bool idle() const = 0;  // all have ended
  virtual void stop() = 0;        // no request will follow
  // What the other engines last said of themselves, by rank.
  virtual std::vector<EngineStats> others() const = 0;
};

class StepGroup {
 public:
  virtual ~StepGroup() = default;

  virtual RequestCourier* courier() { return nullptr; }

  // Votes: what the ranks may plan in this round.
  virtual StepKind vote(const StepWish& mine) = 0;
  // After a vote of kPrefill: `planned` says whether this rank found room for prompt rows. The kind
  // that runs: kPrefill when any rank did, else kDecode or kWait.
  virtual StepKind confirm(bool planned) = 0;
};

}  // namespace peregrine
