// A short life of a session, whose logits have to be the same however many ranks compute them.
#pragma once

#include <memory>
#include <utility>

#include "engine/tiny.h"

namespace peregrine::test {

// Reads `prompt`, decodes, goes back and on, and drafts; `options` with at least 4 draft rows.
inline Rows session_rows(std::shared_ptr<const Model> model, const Ids& prompt,
                         const SessionOptions& options) {
  Session session(std::move(model), options);
  session.sync(prompt);
  Rows rows = copied(session.logits());
  const Rows more = greedy_rows(session, 6);
  rows.insert(rows.end(), more.begin(), more.end());
  session.truncate(session.length() - 3);
  session.step(9);
  const Rows drafts = draft_rows(session, 17, 4);
  rows.insert(rows.end(), drafts.begin(), drafts.end());
  return rows;
}

}  // namespace peregrine::test
