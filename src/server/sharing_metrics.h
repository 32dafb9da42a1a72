// The numbers of sharing between servers, for Prometheus.
#pragma once

#include <string>

#include "kvshare/sharing.h"

namespace peregrine {

std::string sharing_text(const SharingStats& stats);  // the text exposition format

}  // namespace peregrine
