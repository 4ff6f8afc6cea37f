// See signals.hpp. A handler never leaves by a jump: it changes where the interrupted code goes on.
#include "signals.hpp"
#include <pthread.h>
#include <signal.h>
#include "context.hpp"
#include "memory.hpp"

namespace tw {
namespace {
constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
constexpr u32 kFaultCount = sizeof kFaults / sizeof kFaults[0];

struct sigaction g_old_faults[kFaultCount], g_old_interrupt;
stack_t g_old_stack;
alignas(64) u8 g_alternate_stack[64 << 10];
pthread_t g_thread;
bool g_catching, g_catching_interrupts;
volatile bool g_leavable;

void give_back(int signal_number) {
  for (u32 i = 0; i < kFaultCount; ++i)
    if (kFaults[i] == signal_number) sigaction(signal_number, &g_old_faults[i], nullptr);
}

bool is_misaligned(int signal_number, const siginfo_t& info) {
#if defined(__linux__) && defined(__x86_64__)
  // A general-protection fault, which comes without its address.
  if (signal_number == SIGSEGV && info.si_code == SI_KERNEL) return true;
#endif
  return signal_number == SIGBUS && info.si_code == BUS_ADRALN;
}

void on_fault(int signal_number, siginfo_t* info, void* frame) {
  if (!g_leavable || !pthread_equal(pthread_self(), g_thread)) {
    give_back(signal_number);  // not a kernel's: the instruction is tried again under the handler before ours
    return;
  }
  g_report.clear();
  if (signal_number == SIGFPE) {
    set_kind("misuse");
    g_report.add("integer division by zero, or of the smallest integer by -1");
  } else if (signal_number == SIGILL || signal_number == SIGTRAP) {
    set_kind("trap");
    g_report.add("a trap, such as __builtin_trap, or an instruction that this CPU does not have");
  } else if (is_misaligned(signal_number, *info)) {
    set_kind("misaligned");
    g_report.add("an address that no memory can have, or a wide load or store that is not aligned to its size");
  } else if (!current_fiber()) {
    set_kind("internal");
    g_report.add("the emulator itself failed at address %p", info->si_addr);
  } else {
    set_kind("out-of-bounds");
    g_report.add("%s at ", access_kind(frame));
    describe_address(g_report, u64(info->si_addr));
  }
  g_report.add_place();
  resume_after_signal(frame, main_context());
}

void on_interrupt(int signal_number, siginfo_t*, void* frame) {
  if (!pthread_equal(pthread_self(), g_thread)) {
    pthread_kill(g_thread, signal_number);
    return;
  }
  const int times = g_interrupts + 1;
  g_interrupts = times;
  // An observer may hold the C library's allocator, and it polls the flag: it is left by force only when pressed again.
  const int patience = g_observer ? 3 : 2;
  if (times < patience || !g_leavable) return;
  set_kind("interrupted");
  g_report.add("Ctrl-C, pressed again");
  g_report.add_place();
  resume_after_signal(frame, main_context());
}

void install(int signal_number, void (*handler)(int, siginfo_t*, void*), struct sigaction* old) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(signal_number, &action, old);
}
}  // namespace

void set_leavable(bool leavable) { g_leavable = leavable; }

void catch_signals(bool interrupts) {
  g_thread = pthread_self();
  g_interrupts = 0;
  stack_t ours = {};
  ours.ss_sp = g_alternate_stack;
  ours.ss_size = sizeof g_alternate_stack;
  sigaltstack(&ours, &g_old_stack);
  for (u32 i = 0; i < kFaultCount; ++i) install(kFaults[i], on_fault, &g_old_faults[i]);
  g_catching_interrupts = interrupts;
  if (interrupts) install(SIGINT, on_interrupt, &g_old_interrupt);
  g_catching = true;
}

static void release_handlers() {
  g_catching = false;
  if (g_catching_interrupts) sigaction(SIGINT, &g_old_interrupt, nullptr);
  for (u32 i = 0; i < kFaultCount; ++i) sigaction(kFaults[i], &g_old_faults[i], nullptr);
}

void release_signals() {
  release_handlers();
  sigaltstack(&g_old_stack, nullptr);
}
}  // namespace tw

// In a child process that another thread forked while a kernel ran: the launching thread does not exist there.
TW_API void tw_after_fork() {
  if (tw::g_catching) tw::release_handlers();
}
