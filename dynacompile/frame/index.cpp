// The index of a bucket: entries sorted by facts of the call, so that a lookup tries those alone that the call may belong to.
//
// A tree. A node names one fact, chosen because it tells the node's entries apart best; a call goes to the entries that want the number that the fact
// has now, and to those that don't look at it. It may offer an entry too many, never one too few: the guards decide.
#include "hook.h"

#include <algorithm>
#include <bit>

namespace dynacompile {
namespace {

constexpr int deepest = 6;

struct Choice {
    uint64_t key = 0;
    double score = 0;  // entries that a call is expected to be left with
    int cost = 0;
};

struct Spread {
    std::unordered_map<uint64_t, size_t> wanted;
    size_t entries = 0;
    int cost = 0;
};

Choice choose(const std::vector<Entry*>& entries) {
    std::unordered_map<uint64_t, Spread> facts;
    for (const Entry* entry : entries) {
        std::unordered_set<uint64_t> seen;
        for (size_t f = 0, count = feature_count(entry->guards); f < count; f++) {
            const uint64_t key = feature_key(entry->guards, f);
            if (!seen.insert(key).second) continue;
            Spread& spread = facts[key];
            spread.wanted[feature_wanted(entry->guards, f)]++;
            spread.entries++;
            spread.cost = feature_cost(entry->guards, f);
        }
    }
    Choice best{0, static_cast<double>(entries.size()), 0};
    for (const auto& [key, spread] : facts) {
        double squares = 0;
        for (const auto& [number, count] : spread.wanted) squares += static_cast<double>(count) * static_cast<double>(count);
        const double score = squares / static_cast<double>(spread.entries) + static_cast<double>(entries.size() - spread.entries);
        const bool better = score < best.score - 1e-9 || (score < best.score + 1e-9 && best.key && (spread.cost < best.cost || (spread.cost == best.cost && key < best.key)));
        if (better) best = {key, score, spread.cost};
    }
    return best;
}

// Which of the entry's features has the key; -1: none.
int feature_by_key(const Entry* entry, uint64_t key) {
    for (size_t f = 0, count = feature_count(entry->guards); f < count; f++) {
        if (feature_key(entry->guards, f) == key) return static_cast<int>(f);
    }
    return -1;
}

std::unique_ptr<IndexNode> build(std::vector<Entry*> entries, int depth) {
    auto node = std::make_unique<IndexNode>();
    const Choice choice = entries.size() > 1 && depth < deepest ? choose(entries) : Choice{};
    if (!choice.key) {
        node->entries = std::move(entries);
        return node;
    }
    std::unordered_map<uint64_t, std::vector<Entry*>> by;
    std::vector<Entry*> others;
    for (Entry* entry : entries) {
        const int feature = feature_by_key(entry, choice.key);
        if (feature < 0) {
            others.push_back(entry);
            continue;
        }
        node->program = entry->guards;
        node->feature = static_cast<size_t>(feature);
        by[feature_wanted(entry->guards, static_cast<size_t>(feature))].push_back(entry);
    }
    node->by.resize(std::bit_ceil(by.size() * 2));
    for (auto& [number, some] : by) {
        size_t at = number & (node->by.size() - 1);
        while (node->by[at].below) at = (at + 1) & (node->by.size() - 1);
        node->by[at] = {number, build(std::move(some), depth + 1)};
    }
    if (!others.empty()) node->others = build(std::move(others), depth + 1);
    return node;
}

const IndexNode* below(const IndexNode& node, uint64_t number) {
    const size_t mask = node.by.size() - 1;
    for (size_t at = number & mask; node.by[at].below; at = (at + 1) & mask) {
        if (node.by[at].number == number) return node.by[at].below.get();
    }
    return nullptr;
}

void collect(const IndexNode* node, const Roots& roots, Candidates& into) {
    for (; node; node = node->others.get()) {
        for (Entry* entry : node->entries) into.add(entry);
        if (!node->program) continue;
        if (const IndexNode* found = below(*node, feature_now(node->program, node->feature, roots))) collect(found, roots, into);
    }
}

}  // namespace

std::unique_ptr<IndexNode> build_index(const std::vector<Entry*>& entries) { return build(entries, 0); }

void find_candidates(const IndexNode& index, const Roots& roots, Candidates& into) {
    collect(&index, roots, into);
    if (into.count > 1) std::sort(into.begin(), into.begin() + into.count, [](const Entry* a, const Entry* b) { return a->used > b->used; });
}

}  // namespace dynacompile
