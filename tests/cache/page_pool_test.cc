#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace peregrine {
namespace {

TEST(PagePool, HandsOutEveryPageOnceLowNumbersFirst) {
  PagePool pool(5);
  for (int32_t page = 0; page < 5; ++page) {
    EXPECT_EQ(pool.allocate(), page);
    EXPECT_EQ(pool.references(page), 1);
    EXPECT_EQ(pool.used_pages(), page + 1);
  }
  EXPECT_EQ(pool.allocate(), -1);
  EXPECT_EQ(pool.free_pages(), 0);
}

TEST(PagePool, PageIsFreeWithItsLastReference) {
  PagePool pool(2);
  const int32_t page = pool.allocate();
  pool.add_reference(page);
  pool.add_reference(page);
  pool.release(page);
  pool.release(page);
  EXPECT_EQ(pool.references(page), 1);
  EXPECT_EQ(pool.free_pages(), 1);
  pool.release(page);
  EXPECT_EQ(pool.references(page), 0);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_EQ(std::set<int32_t>({pool.allocate(), pool.allocate()}), std::set<int32_t>({0, 1}));
}

TEST(PagePool, EmptyPoolHasNothing) {
  PagePool pool(0);
  EXPECT_EQ(pool.capacity(), 0);
  EXPECT_EQ(pool.allocate(), -1);
}

}  // namespace
}  // namespace peregrine
