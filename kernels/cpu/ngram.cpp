#include "ngram.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

namespace sf {

template <class Int>
NgramIndex::Array<Int> NgramIndex::owned(void* memory) {
  if (!memory) throw std::bad_alloc();
  return Array<Int>(static_cast<Int*>(memory));
}

uint32_t NgramIndex::buckets_for(int32_t capacity) {
  uint32_t buckets = 256;
  while (buckets < uint32_t(capacity)) buckets *= 2;
  return buckets;
}

NgramIndex::NgramIndex(int32_t capacity) : room_(capacity) {
  if (capacity < 1 || capacity > (1 << 24)) throw std::invalid_argument("capacity must be 1 to 16777216 tokens");
  const size_t room = size_t(capacity);
  ids_ = owned<int32_t>(std::malloc(room * sizeof(int32_t)));
  link_ = owned<int32_t>(std::malloc((room + 1) * kOrders * sizeof(int32_t)));
  head_ = owned<uint32_t>(std::calloc(size_t(buckets_for(capacity)) * kOrders, sizeof(uint32_t)));
  restart(capacity);
}

void NgramIndex::restart(int32_t capacity) {
  if (capacity < 1 || capacity > room_) throw std::invalid_argument("the index has no room for so many tokens");
  if (era_ == kEras) {
    std::memset(head_.get(), 0, size_t(buckets_for(room_)) * kOrders * sizeof(uint32_t));
    era_ = 0;
  }
  ++era_;
  capacity_ = capacity;
  mask_ = buckets_for(capacity) - 1;
  size_ = 0;
  forget();
  trials_ = hits_ = {};
}

size_t NgramIndex::bytes() const {
  return (size_t(room_) + size_t(buckets_for(room_)) * kOrders + size_t(room_ + 1) * kOrders) * sizeof(int32_t);
}

// Buckets of the n-grams that end at the end, shortest first; orders longer than the text are not written.
void NgramIndex::buckets(uint32_t out[kOrders]) const {
  uint64_t h = 0;
  const int longest = std::min<int32_t>(kMaxOrder, size_);
  for (int n = 1; n <= longest; ++n) {
    h = (h ^ uint32_t(ids_[size_ - n])) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 32;
    if (n >= kMinOrder) out[n - kMinOrder] = uint32_t(h >> 20) & mask_;
  }
}

void NgramIndex::append(int32_t id) {
  if (size_ == capacity_) throw std::length_error("n-gram index is full");
  ids_[size_++] = id;
  uint32_t at[kOrders];
  buckets(at);
  int32_t* link = &link_[size_t(size_) * kOrders];
  for (int o = 0; o < orders(); ++o) {
    uint32_t& latest = head(o, at[o]);
    link[o] = latest >> kPositionBits == era_ ? int32_t(latest & ((1u << kPositionBits) - 1)) : 0;
    latest = marked(size_);
  }
}

void NgramIndex::truncate(int32_t size) {
  if (size < 0 || size > size_) throw std::invalid_argument("cannot truncate to a length the index does not have");
  if (size == size_) return;
  uint32_t at[kOrders];
  for (; size_ > size; --size_) {  // latest first, so every head is this position when it is taken back
    buckets(at);
    for (int o = 0; o < orders(); ++o) head(o, at[o]) = marked(links(size_)[o]);
  }
  forget();
}

// No match is known, and no copy that might go on.
void NgramIndex::forget() {
  last_ = {};
  last_end_ = -1;
  broken_ = 0;
  gap_ = 1;
  shift_ = 0;
}

// How many tokens before `end` equal those before the index's own end.
int32_t NgramIndex::matched(int32_t end, int32_t limit) const {
  const int32_t longest = std::min(limit, end);
  int32_t n = 0;
  while (n < longest && ids_[end - 1 - n] == ids_[size_ - 1 - n]) ++n;
  return n;
}

// A short match is better sought where a long copy has broken off than anywhere else.
NgramIndex::Match NgramIndex::find() const {
  const Match anywhere = find_anywhere();
  if (!broken_ || anywhere.length >= kMaxOrder) return anywhere;
  const Match resumed = find_resumed();
  if (resumed.length) return anywhere.length > resumed.length + 1 ? anywhere : resumed;
  return anywhere.length ? anywhere : resumed;
}

// The longest match around the place where the broken copy would have gone on; the least shifted of equals. A match of
// kMaxOrder tokens is one like any other. Where nothing agrees, the copy may be about to go on as the last one did.
//
//     source  a b c d e f g h i j            changed:   a b c d X f g h     distance as before
//                     ^ broken               inserted:  a b c d X e f g     one more
//     text    a b c d X                      left out:  a b c d f g h i     one less
NgramIndex::Match NgramIndex::find_resumed() const {
  Match best;
  for (int step = 0; step <= 2 * kShift; ++step) {
    const int32_t distance = broken_ + (step % 2 ? -(step + 1) / 2 : step / 2);
    if (distance < 1 || distance >= size_) continue;
    const int32_t n = matched(size_ - distance, kMaxOrder - 1);
    if (n > best.length) best = {distance, n, kResumes};
  }
  const int32_t since = size_ - broken_at_;
  if (best.length) return since - best.length > kPatience ? Match{} : best;
  const int32_t distance = broken_ + shift_;
  return since == gap_ && distance >= 1 && distance < size_ ? Match{distance, 0, kResumes} : Match{};
}

// The longest match among the candidates of the longest order that has one; the most recent of equals.
NgramIndex::Match NgramIndex::find_anywhere() const {
  Match best;
  if (last_.distance && last_.distance < size_) {
    const int32_t n = matched(size_ - last_.distance, kMaxMatch);
    if (n >= kMaxOrder) best = {last_.distance, n, kAlone};
  }
  for (int o = orders() - 1; o >= 0; --o) {
    const int order = o + kMinOrder;
    int32_t p = links(size_)[o];
    for (int step = 0; p && step < kDepth; ++step, p = links(p)[o]) {
      const int32_t n = matched(p, order == kMaxOrder ? kMaxMatch : order);
      if (n < order) continue;  // another n-gram of the same bucket
      if (n > best.length || (n == best.length && size_ - p < best.distance)) best = {size_ - p, n, kAlone};
      if (order < kMaxOrder || n == kMaxMatch) break;
    }
    if (best.length) {
      best.vote = vote(o, best.distance);
      break;
    }
  }
  return best;
}

// Asks the most recent other occurrence of the same n-gram what came next.
NgramIndex::Vote NgramIndex::vote(int o, int32_t distance) const {
  const int32_t order = o + kMinOrder;
  int32_t p = links(size_)[o];
  for (int step = 0; p && step < kDepth; ++step, p = links(p)[o]) {
    if (size_ - p == distance || matched(p, order) < order) continue;
    return ids_[p] == ids_[size_ - distance] ? kAgrees : kDisagrees;
  }
  return kAlone;
}

// What followed the match; past its own end it goes on copying what it copied, so periodic text drafts without limit.
int NgramIndex::draft(const Match& match, int limit, int32_t* out) const {
  const int n = match.distance ? std::clamp(limit, 0, kMaxDraft) : 0;
  for (int j = 0; j < n; ++j) out[j] = j < match.distance ? ids_[size_ - match.distance + j] : out[j - match.distance];
  return n;
}

int NgramIndex::length_grade(int32_t length) {
  static constexpr int32_t kUpTo[kLengths - 1] = {2, 3, 4, 5, 7, 10, 15, 23, 39};
  int g = 0;
  while (g < kLengths - 1 && length > kUpTo[g]) ++g;
  return g;
}

// A copied token that comes true makes the match one longer. So token j of a draft from a match of length L is the same
// event as the first token of a draft from a match of length L + j - 1, and one comparison per text token scores them
// all: by (vote, length) for first tokens and by length alone for later ones. A resumed copy has grades of its own for
// both, until it is long enough to be a match like any other. Nothing after `id` is read.
void NgramIndex::advance(int32_t id) {
  const Match m = size_ ? match() : Match{};
  if (m.distance) {
    const bool hit = ids_[size_ - m.distance] == id;
    if (m.vote == kResumes) {
      score(4 * kLengths + m.length, hit);
    } else {
      const int length = length_grade(m.length);
      score(m.vote * kLengths + length, hit);
      score(3 * kLengths + length, hit);
    }
    if (!hit && m.length >= kMinCopy) {
      broken_ = m.distance;
      broken_at_ = size_;
    }
  }
  append(id);
  last_ = find();
  last_end_ = size_;
  if (broken_) follow_up();
}

// Has the broken copy gone on? Remembers how, and forgets it once it has, or when it has taken too long.
void NgramIndex::follow_up() {
  const int32_t gap = size_ - last_.length - broken_at_, shift = last_.distance - broken_;
  if (last_.length >= kMinOrder && gap >= 1 && gap <= kPatience && std::abs(shift) <= kShift) {
    gap_ = gap;
    shift_ = shift;
  }
  if (last_.length >= kMaxOrder || size_ - broken_at_ >= kPatience + kMaxOrder) broken_ = 0;
}

void NgramIndex::score(int grade, bool hit) {
  ++trials_[grade];
  hits_[grade] += hit;
}

void NgramIndex::take_scores(std::vector<Score>& out) {
  for (int g = 0; g < kGrades; ++g) {
    if (!trials_[g]) continue;
    out.push_back({g, trials_[g], hits_[g]});
    trials_[g] = hits_[g] = 0;
  }
}

}  // namespace sf
