#include "unpack.h"

namespace sf::SF_ISA {
namespace {

template <int Zero> Bytes minus_zero(Bytes codes) {
  return Zero == 0 ? codes : _mm512_sub_epi8(codes, splat_byte(Zero));
}

template <Format F>
void unpack(const uint8_t* tile, int64_t in, int64_t first, int count, Unpacked& out) {
  constexpr Layout layout = layout_of<F>;
  Packed<F> source(tile, tile, in, 0);
  source.scale_group += first / layout.group * layout.scale_bytes;
  source.codes += first * layout.code_bytes();
  for (int b = 0; b < count;) {
    source.begin_group();
    for (int j = 0; j < layout.group; ++j, ++b) {
      [&]<int... G>(std::integer_sequence<int, G...>) {
        (_mm512_store_si512(out.codes[b][G], minus_zero<layout.zero>(source.template group_codes<G>())), ...);
      }(std::make_integer_sequence<int, 8>{});
      const Scales s = source.scales(j);
      for (int p = 0; p < (layout.halves ? 2 : 1); ++p) {
        store_floats(out.scales[b][p], s.scale[p]);
        if constexpr (layout.minimum) store_floats(out.minimums[b][p], s.minimum[p]);
      }
      source.end_block();
    }
    source.end_group();
  }
}

}  // namespace

UnpackedFormat unpacked_format(Format f) {
  return visit_quantised(f, [](auto tag) {
    constexpr Format format = decltype(tag)::format;
    constexpr Layout l = layout_of<format>;
    return UnpackedFormat{unpack<format>, l.halves, l.minimum};
  });
}

}  // namespace sf::SF_ISA
