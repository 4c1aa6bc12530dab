// Preloaded into a process: the n-th allocation by C++'s operator new that one library asks for fails, itself or through the C++ library.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

namespace {

struct Range {
    const char* name;
    char *begin, *end;
    bool has(const void* address) const { return address >= begin && address < end; }
};
Range watched{nullptr, nullptr, nullptr}, standard{"libstdc++", nullptr, nullptr}, unwinder{"libgcc_s", nullptr, nullptr}, own{"failing_new", nullptr, nullptr};
thread_local bool armed = false;
long seen = 0, failing = -1, failed = 0;
bool onward = false;  // all that come after the n-th fail too

int look(dl_phdr_info* info, size_t, void*) {
    for (Range* range : {&watched, &standard, &unwinder, &own}) {
        if (!range->name) continue;
        if (range == &watched ? std::strcmp(info->dlpi_name, range->name) != 0 : !std::strstr(info->dlpi_name, range->name)) continue;
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const auto& part = info->dlpi_phdr[i];
            if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
            range->begin = reinterpret_cast<char*>(info->dlpi_addr + part.p_vaddr);
            range->end = range->begin + part.p_memsz;
        }
    }
    return 0;
}

// Whether the nearest caller that is not the C++ library is the watched one.
bool is_watched() {
    void* frames[12];
    const int count = backtrace(frames, 12);
    for (int i = 0; i < count; i++) {
        if (own.has(frames[i]) || standard.has(frames[i]) || unwinder.has(frames[i])) continue;
        return watched.has(frames[i]);
    }
    return false;
}

bool fails() {
    if (!armed) return false;
    armed = false;
    const bool counts = is_watched();
    armed = true;
    if (!counts) return false;
    const long number = seen++;
    if (failing < 0 || number < failing || (number > failing && !onward)) return false;
    failed++;
    return true;
}

void* allocate(std::size_t size, std::size_t alignment, bool throws) {
    if (!fails()) {
        void* memory = nullptr;
        if (alignment <= alignof(std::max_align_t)) memory = std::malloc(size ? size : 1);
        else if (posix_memalign(&memory, alignment, size)) memory = nullptr;
        if (memory) return memory;
    }
    if (throws) throw std::bad_alloc();
    return nullptr;
}

}  // namespace

// Counts from now on, on this thread; number: which one fails, -1 for none. on: all later ones fail too.
extern "C" void failing_arm(const char* library, long number, int on) {
    static char name[256];
    std::strncpy(name, library, sizeof name - 1);
    watched.name = name;
    dl_iterate_phdr(look, nullptr);
    void* frames[2];
    backtrace(frames, 2);  // loads the unwinder
    seen = failed = 0;
    failing = number;
    onward = on;
    armed = true;
}

extern "C" void failing_disarm() { armed = false; }
extern "C" long failing_seen() { return seen; }
extern "C" long failing_failed() { return failed; }

void* operator new(std::size_t size) { return allocate(size, 1, true); }
void* operator new[](std::size_t size) { return allocate(size, 1, true); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1, false); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1, false); }
void* operator new(std::size_t size, std::align_val_t alignment) { return allocate(size, std::size_t(alignment), true); }
void* operator new[](std::size_t size, std::align_val_t alignment) { return allocate(size, std::size_t(alignment), true); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
