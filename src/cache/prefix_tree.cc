#include "cache/prefix_tree.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace peregrine {
namespace {

// Ids that two spans have in common at their start.
int64_t common(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  const auto [at, ignored] =
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin());
  return at - a.begin();
}

}  // namespace

// Cuts the edge to `node` after `keep` ids and returns the new node there.
PrefixNode& PrefixTree::split(PrefixNode& node, int64_t keep) {
  PrefixNode& parent = *node.parent;
  auto upper = std::make_unique<PrefixNode>();
  upper->run.assign(node.run.begin(), node.run.begin() + keep);
  upper->depth = parent.depth + keep;
  upper->parent = &parent;
  upper->resident = node.resident;
  PrefixNode& result = *upper;

  std::unique_ptr<PrefixNode>& link = parent.children.at(node.run.front());
  std::unique_ptr<PrefixNode> lower = std::exchange(link, std::move(upper));
  lower->run.erase(lower->run.begin(), lower->run.begin() + keep);
  lower->parent = &result;
  const int32_t first = lower->run.front();
  result.children.emplace(first, std::move(lower));
  return result;
}

PrefixNode& PrefixTree::insert(std::span<const int32_t> tokens) {
  assert(!tokens.empty());
  PrefixNode* node = &root_;
  while (!tokens.empty()) {
    const auto child = node->children.find(tokens.front());
    if (child == node->children.end()) {
      auto leaf = std::make_unique<PrefixNode>();
      leaf->run.assign(tokens.begin(), tokens.end());
      leaf->depth = node->depth + static_cast<int64_t>(tokens.size());
      leaf->parent = node;
      PrefixNode& result = *leaf;
      node->children.emplace(tokens.front(), std::move(leaf));
      return result;
    }
    const int64_t same = common(child->second->run, tokens);
    node = child->second.get();
    if (same < static_cast<int64_t>(node->run.size())) node = &split(*node, same);
    tokens = tokens.subspan(static_cast<size_t>(same));
  }
  return *node;
}

PrefixTree::Match PrefixTree::match(std::span<const int32_t> tokens) const {
  Match found;
  const PrefixNode* node = &root_;
  while (!tokens.empty()) {
    const auto child = node->children.find(tokens.front());
    if (child == node->children.end()) break;
    const int64_t same = common(child->second->run, tokens);
    found.length += same;
    found.subtree = child->second.get();
    node = found.subtree;
    if (same < static_cast<int64_t>(node->run.size())) break;
    if (node->item != nullptr) found.passed.push_back(found.subtree);
    tokens = tokens.subspan(static_cast<size_t>(same));
  }
  return found;
}

std::vector<int32_t> PrefixTree::tokens(const PrefixNode& node) const {
  std::vector<int32_t> ids(static_cast<size_t>(node.depth));
  for (const PrefixNode* at = &node; at->parent != nullptr; at = at->parent)
    std::copy(at->run.begin(), at->run.end(), ids.begin() + at->parent->depth);
  return ids;
}

void PrefixTree::add_resident(PrefixNode& node, int64_t change) {
  for (PrefixNode* at = &node; at != nullptr; at = at->parent) at->resident += change;
}

void PrefixTree::prune(PrefixNode& node) {
  PrefixNode* at = &node;
  while (at->parent != nullptr && at->item == nullptr && at->children.empty()) {
    PrefixNode* parent = at->parent;
    parent->children.erase(parent->children.find(at->run.front()));
    at = parent;
  }
  if (at->parent == nullptr || at->item != nullptr || at->children.size() != 1) return;
  // One way on: the child takes over the run.
  PrefixNode* parent = at->parent;
  std::unique_ptr<PrefixNode> child = std::move(at->children.begin()->second);
  child->run.insert(child->run.begin(), at->run.begin(), at->run.end());
  child->parent = parent;
  std::unique_ptr<PrefixNode>& link = parent->children.at(child->run.front());
  link = std::move(child);  // destroys *at
}

}  // namespace peregrine
