#include "server/sharing_metrics.h"

#include "server/metric_families.h"

namespace peregrine {

std::string sharing_text(const SharingStats& s) {
  MetricFamilies all("peregrine_sharing_");
  const auto count = [&](const char* name, const char* help, auto value) {
    all.count(name, help, static_cast<double>(value));
  };
  const auto gauge = [&](const char* name, const char* help, auto value) {
    all.gauge(name, help, static_cast<double>(value));
  };
  const auto labelled = [&](const char* name, const char* help, const char* label,
                            const std::vector<std::pair<std::string, int64_t>>& values) {
    all.counts(name, help, label, {values.begin(), values.end()});
  };
  labelled("requests_total", "Requests of named conversations, by where their state came from",
           "state",
           {{"engine", s.requests_from(StateSource::kEngine)},
            {"vault", s.requests_from(StateSource::kVault)},
            {"remote", s.requests_from(StateSource::kRemote)},
            {"none", s.requests_from(StateSource::kNone)}});
  count("fetched_bytes_total", "Bytes read from other servers", s.fetched_bytes);
  count("fetch_seconds_total", "Time spent reading them", s.fetch_seconds);
  labelled("fetch_failures_total", "Reads that gave nothing, by cause", "cause",
           {s.fetch_failures.begin(), s.fetch_failures.end()});
  count("recompute_chosen_total", "Reads left out because computing was faster",
        s.recompute_chosen);
  count("claims_total", "Ended turns that were announced", s.claims);
  count("stale_total", "Claims on a version that was not the current one", s.stale);
  count("unpublished_total", "Ended turns that were not announced", s.unpublished);
  count("reclaimed_total", "States announced again", s.reclaimed);
  count("directory_failures_total", "Operations the directory did not answer",
        s.directory_failures);
  gauge("directory_available", "1: the directory answers", s.directory_available ? 1 : 0);
  gauge("fetch_memory_bytes", "States read from other servers or being read", s.fetch_memory_bytes);
  gauge("prepared", "States that wait for their request's turn", s.prepared);
  gauge("peers", "Other servers connected to read states", s.serving.peers);
  gauge("reads", "States being read by other servers", s.serving.reading);
  count("peer_requests_total", "States other servers asked for", s.serving.requests);
  count("peers_refused_total", "Connections that did not know the secret", s.serving.refused);
  labelled("reads_cut_off_total", "Reads by other servers that ended early, by cause", "cause",
           {{"deadline", s.serving.expired}, {"connection", s.serving.broken}});
  count("sent_bytes_total", "Bytes read by other servers", s.serving.sent_bytes);
  gauge("memory_bytes", "States in host memory", s.vault.memory_bytes);
  gauge("disk_bytes", "States in files", s.vault.disk_bytes);
  gauge("conversations", "States kept", s.vault.entries);
  gauge("pinned", "Readers of states in host memory", s.vault.pins);
  count("evictions_total", "States given up for room", s.vault.evictions);
  count("vault_failures_total", "States lost to a fault of a file", s.vault.failures);
  count("damaged_in_memory_total", "States whose bytes in memory had changed", s.damaged_in_memory);
  return all.text();
}

}  // namespace peregrine
