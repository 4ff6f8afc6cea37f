// See context.hpp. The registers saved are those of the System V ABI (x86-64) and the AAPCS64 (aarch64).
#include "context.hpp"
#include <signal.h>
#include <string.h>
#if !defined(__APPLE__)
#include <ucontext.h>
#endif

#if defined(__APPLE__)
#define TW_BEGIN(name) ".private_extern _" name "\n.globl _" name "\n_" name ":\n"
#else
#define TW_BEGIN(name) ".globl " name "\n.hidden " name "\n.type " name ", %function\n" name ":\n"
#endif

#if defined(__x86_64__)
enum { kSavedWords = 6 };
asm(".text\n.p2align 4\n"  //
    TW_BEGIN("tw_context_switch")
    "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    "mov %rsp, (%rdi)\n"
    "mov %rsi, %rsp\n"  //
    TW_BEGIN("tw_context_resume")
    "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n"
    "ret\n");
#elif defined(__aarch64__)
enum { kSavedWords = 20, kLinkRegister = 11 };
asm(".text\n.p2align 4\n"  //
    TW_BEGIN("tw_context_switch")
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    "mov x9, sp\n str x9, [x0]\n"
    "mov sp, x1\n"  //
    TW_BEGIN("tw_context_resume")
    "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\n"
    "ret\n");
#else
#error "the emulator knows x86-64 and aarch64: another machine needs its own context switch here"
#endif

namespace tw {
void* make_context(u8* top, void (*entry)()) {
  u64* words = reinterpret_cast<u64*>(u64(top) & ~u64(15));
#if defined(__x86_64__)
  *--words = 0;  // where a caller's return address would be: the stack is aligned as at a function's entry
  *--words = u64(entry);
  words -= kSavedWords;
  memset(words, 0, kSavedWords * sizeof(u64));
#else
  words -= kSavedWords;
  memset(words, 0, kSavedWords * sizeof(u64));
  words[kLinkRegister] = u64(entry);
#endif
  return words;
}

void resume_after_signal(void* frame, void* saved) {
  ucontext_t* context = static_cast<ucontext_t*>(frame);
  const auto resume = &tw_context_resume;
#if defined(__APPLE__) && defined(__aarch64__)
  context->uc_mcontext->__ss.__pc = u64(resume);
  context->uc_mcontext->__ss.__sp = u64(saved);
#elif defined(__APPLE__)
  context->uc_mcontext->__ss.__rip = u64(resume);
  context->uc_mcontext->__ss.__rsp = u64(saved);
#elif defined(__aarch64__)
  context->uc_mcontext.pc = u64(resume);
  context->uc_mcontext.sp = u64(saved);
#else
  context->uc_mcontext.gregs[REG_RIP] = (long long)(resume);
  context->uc_mcontext.gregs[REG_RSP] = (long long)(saved);
#endif
}

const char* access_kind(void* frame) {
#if defined(__linux__) && defined(__x86_64__)
  constexpr u64 kWriteBit = 2;  // of the page-fault error code
  return u64(static_cast<ucontext_t*>(frame)->uc_mcontext.gregs[REG_ERR]) & kWriteBit ? "write" : "read";
#else
  (void)frame;
  return "access";
#endif
}
}  // namespace tw
