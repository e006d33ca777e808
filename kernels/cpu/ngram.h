// Where a request's own tokens occurred before, and what followed: the index behind the `ngram` speculator.
// Owns token ids and hash chains; knows no model, no request and no clock.
//
// Every position p (the number of tokens before it) is filed, for each order 2..8, under the hash of the `order` tokens
// that end there. head[bucket] is the latest such p, link[p] the one before it in the same bucket (as in deflate), so
// appending, looking up and taking back a token cost the same whatever the context. Hits are verified token by token.
//
// An index may start again for another text, in the memory that it has: heads are marked with the era that wrote them.
#pragma once
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace sf {

class NgramIndex {
 public:
  static constexpr int kMinOrder = 2, kMaxOrder = 8, kOrders = kMaxOrder - kMinOrder + 1;
  static constexpr int kDepth = 16;     // links followed per order
  static constexpr int kMaxMatch = 64;  // a longer match counts as this long
  static constexpr int kMaxDraft = 64;
  static constexpr int kLengths = 10;   // grades of a match's length
  static constexpr int kMinCopy = 4;    // a copy of so many tokens that breaks off is expected to go on nearby
  static constexpr int kShift = 4;      // ... at most so many tokens further on, or back
  static constexpr int kPatience = 16;  // ... and at most so many tokens later
  static constexpr int kGrades = 4 * kLengths + kMaxOrder;

  // What the occurrence before the matched one says of the next token: there is none, the same, or something else. Or
  // why nobody was asked: a copy that had broken off goes on here.
  enum Vote : int32_t { kAlone = 0, kAgrees = 1, kDisagrees = 2, kResumes = 3 };

  struct Match {
    int32_t distance = 0;  // the match ends this many tokens before the end; 0: none
    int32_t length = 0;    // tokens that agree, at most kMaxMatch; none where a copy should resume
    Vote vote = kAlone;
  };
  struct Score {
    int32_t grade, trials, hits;
  };

  explicit NgramIndex(int32_t capacity);
  void restart(int32_t capacity);  // empty, and as if made for `capacity` tokens: at most room()

  int32_t size() const { return size_; }
  int32_t capacity() const { return capacity_; }
  int32_t room() const { return room_; }
  size_t bytes() const;

  void append(int32_t id);   // throws std::length_error when full
  void advance(int32_t id);  // append, after judging by it the draft that would have been made before it
  void truncate(int32_t size);

  Match match() const { return last_end_ == size_ ? last_ : find(); }
  int draft(const Match& match, int limit, int32_t* out) const;
  void take_scores(std::vector<Score>& out);

  static int length_grade(int32_t match_length);

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  static constexpr int kPositionBits = 25;
  static constexpr uint32_t kEras = (1u << (32 - kPositionBits)) - 1;

  template <class Int>
  using Array = std::unique_ptr<Int[], Free>;
  template <class Int>
  static Array<Int> owned(void* memory);
  static uint32_t buckets_for(int32_t capacity);

  int orders() const { return (size_ < kMaxOrder ? size_ : kMaxOrder) - kMinOrder + 1; }
  const int32_t* links(int32_t position) const { return &link_[size_t(position) * kOrders]; }
  void buckets(uint32_t out[kOrders]) const;
  uint32_t& head(int o, uint32_t bucket) const { return head_[size_t(o) * (mask_ + 1) + bucket]; }
  uint32_t marked(int32_t position) const { return era_ << kPositionBits | uint32_t(position); }
  int32_t matched(int32_t end, int32_t limit) const;
  Match find() const;
  Match find_anywhere() const;
  Match find_resumed() const;
  Vote vote(int order, int32_t distance) const;
  void score(int grade, bool hit);
  void follow_up();
  void forget();

  int32_t room_, capacity_ = 0, size_ = 0;
  uint32_t mask_ = 0, era_ = 0;
  Array<int32_t> ids_, link_;  // link_: [capacity + 1][orders], 0 means none; both are written before they are read
  Array<uint32_t> head_;       // [orders][buckets]: era and position
  Match last_{};            // the match found when the last token was scored; its continuation stays a candidate
  int32_t last_end_ = -1;   // the size at that moment
  int32_t broken_ = 0;      // distance of the copy that broke off last; 0: none, or it goes on
  int32_t broken_at_ = 0;   // position of the first token that differed
  int32_t gap_ = 1, shift_ = 0;  // how the last broken copy went on: after so many tokens, at so much more distance
  std::array<int32_t, kGrades> trials_{}, hits_{};
};

}  // namespace sf
