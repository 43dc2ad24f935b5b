#include "apps/quire/curve_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace quire::app {
namespace {

// Of the drawing and, inside it, of the axes, in pixels.
constexpr double kWidth = 720;
constexpr double kHeight = 420;
constexpr double kLeft = 60;
constexpr double kRight = 690;
constexpr double kTop = 20;
constexpr double kBottom = 370;

}  // namespace

std::string CurveSvg(const std::vector<CurvePoint>& curve) {
  const double first = curve.empty() ? 0 : std::log2(curve.front().capacity_blocks);
  const double last = curve.empty() ? 1 : std::log2(curve.back().capacity_blocks);
  const double doublings = std::max(1e-9, last - first);
  const auto x = [&](double log2) { return kLeft + (log2 - first) / doublings * (kRight - kLeft); };
  const auto y = [](double ratio) { return kBottom - ratio * (kBottom - kTop); };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{}\" height=\"{}\" fill=\"white\"/>\n",
      kWidth, kHeight, kWidth, kHeight);
  const auto out = std::back_inserter(svg);
  for (int tenths = 0; tenths <= 10; tenths += 2) {
    const double at = y(tenths / 10.0);
    fmt::format_to(out,
                   "<path d=\"M{} {:.1f}H{}\" stroke=\"#ddd\"/>\n<text x=\"{}\" y=\"{:.1f}\" "
                   "text-anchor=\"end\">{:.1f}</text>\n",
                   kLeft, at, kRight, kLeft - 8, at + 4, tenths / 10.0);
  }
  for (double log2 = std::ceil(first); log2 <= last; log2 += 2) {
    fmt::format_to(out,
                   "<path d=\"M{:.1f} {}V{}\" stroke=\"#ddd\"/>\n<text x=\"{:.1f}\" y=\"{}\" "
                   "text-anchor=\"middle\">{:.0f}</text>\n",
                   x(log2), kTop, kBottom, x(log2), kBottom + 18, std::exp2(log2));
  }
  fmt::format_to(
      out,
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">capacity in blocks</text>\n"
      "<text x=\"16\" y=\"{}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {})\">hit "
      "ratio, least recently used first</text>\n",
      (kLeft + kRight) / 2, kHeight - 10, (kTop + kBottom) / 2, (kTop + kBottom) / 2);
  svg += "<polyline fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"2\" points=\"";
  for (const CurvePoint& point : curve) {
    fmt::format_to(out, "{:.1f},{:.1f} ", x(std::log2(point.capacity_blocks)), y(point.hit_ratio));
  }
  svg += "\"/>\n</svg>\n";
  return svg;
}

}  // namespace quire::app
