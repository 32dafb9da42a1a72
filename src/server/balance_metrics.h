// The balance of experts over ranks for /metrics.
#pragma once

#include <string>

#include "parallel/expert_balance.h"

namespace peregrine {

// Families peregrine_experts_*, in the text exposition format.
std::string balance_text(const BalanceStats& stats);

}  // namespace peregrine
