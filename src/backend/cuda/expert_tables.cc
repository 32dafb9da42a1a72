#include "backend/cuda/expert_tables.h"

#include <algorithm>

#include "backend/cuda/launch.h"

namespace peregrine::cuda {
namespace {

bool same(const Weight& a, const Weight& b) {
  return a.format == b.format && a.out == b.out && a.in == b.in && a.data == b.data &&
         a.scale == b.scale;
}
bool same(const Expert& a, const Expert& b) {
  return same(a.w1, b.w1) && same(a.w2, b.w2) && same(a.w3, b.w3);
}

bool holds(const std::vector<Expert>& host, std::span<const Expert> routed, const Expert* shared) {
  return host.size() == routed.size() + (shared != nullptr ? 1 : 0) &&
         std::equal(routed.begin(), routed.end(), host.begin(),
                    [](const Expert& a, const Expert& b) { return same(a, b); }) &&
         (shared == nullptr || same(*shared, host.back()));
}

}  // namespace

ExpertTables::~ExpertTables() {
  for (const auto& [address, tables] : tables_)
    for (const Table& table : tables) cudaFree(table.device);
}

const Expert* ExpertTables::get(std::span<const Expert> routed, const Expert* shared) {
  std::vector<Table>& tables = tables_[routed.data()];
  for (const Table& table : tables)
    if (holds(table.host, routed, shared)) return table.device;
  Table table;
  table.host.assign(routed.begin(), routed.end());
  if (shared != nullptr) table.host.push_back(*shared);
  const size_t bytes = table.host.size() * sizeof(Expert);
  check(cudaMalloc(reinterpret_cast<void**>(&table.device), bytes), "a table of experts");
  check(cudaMemcpyAsync(table.device, table.host.data(), bytes, cudaMemcpyDefault, stream_),
        "a table of experts");
  check(cudaStreamSynchronize(stream_), "a table of experts");
  tables.push_back(std::move(table));
  return tables.back().device;
}

}  // namespace peregrine::cuda
