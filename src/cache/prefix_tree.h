// A radix tree over token ids: which cached sequences share how long a prefix.
//
// Nodes end where an item ends or where sequences part; the edge to a node holds the token ids in
// between, which are compared one by one. The tree owns its nodes and knows of items only that they
// are there and whether their rows are in the page pool; the prefix cache owns the items. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace peregrine {

struct PrefixItem;

struct PrefixNode {
  std::vector<int32_t> run;  // token ids from the parent's end to this node's end
  int64_t depth = 0;         // tokens from the root to this node's end
  PrefixNode* parent = nullptr;
  std::unordered_map<int32_t, std::unique_ptr<PrefixNode>> children;  // by first id of their run
  PrefixItem* item = nullptr;                                         // what ends here
  int64_t resident = 0;  // items of this subtree whose rows are in the page pool
};

class PrefixTree {
 public:
  PrefixTree() = default;
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The node of exactly these tokens (at least one), made where it is missing: O(tokens). The
  // caller gives it an item, or calls prune().
  PrefixNode& insert(std::span<const int32_t> tokens);

  struct Match {
    int64_t length = 0;               // longest common prefix with any sequence of the tree
    PrefixNode* subtree = nullptr;    // its items are those that share it; null when length is 0
    std::vector<PrefixNode*> passed;  // nodes with an item that lie on the way, shortest first
  };
  Match match(std::span<const int32_t> tokens) const;  // O(length)

  // The ids from the root to the end of a node.
  std::vector<int32_t> tokens(const PrefixNode& node) const;

  // An item of the node became resident (+1) or stopped being it (-1).
  void add_resident(PrefixNode& node, int64_t change);

  // Removes the node if nothing needs it, and joins runs that no longer part. The node may be gone
  // afterwards.
  void prune(PrefixNode& node);

  bool empty() const { return root_.children.empty(); }

 private:
  PrefixNode& split(PrefixNode& node, int64_t keep);

  PrefixNode root_;
};

}  // namespace peregrine
