#include "interrupt.h"

#include <csignal>

namespace peregrine {
namespace {

volatile std::sig_atomic_t requested_flag = 0;
struct sigaction previous_action;

void on_interrupt(int) { requested_flag = 1; }

}  // namespace

InterruptGuard::InterruptGuard(bool once) {
  clear();
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a read of a line returns to its caller.
  action.sa_flags = once ? static_cast<int>(SA_RESETHAND) : 0;
  sigaction(SIGINT, &action, &previous_action);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &previous_action, nullptr); }

bool InterruptGuard::requested() { return requested_flag != 0; }
void InterruptGuard::clear() { requested_flag = 0; }

}  // namespace peregrine
