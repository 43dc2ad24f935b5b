// A hit ratio curve as a picture.
#ifndef QUIRE_APPS_CURVE_SVG_H_
#define QUIRE_APPS_CURVE_SVG_H_

#include <string>
#include <vector>

#include "apps/quire/replayer.h"

namespace quire::app {

/// An SVG document: capacities to the right, in powers of two, hit ratios up, 0 to 1.
///
/// Shape: curve [points], ascending capacities of at least 1
std::string CurveSvg(const std::vector<CurvePoint>& curve);

}  // namespace quire::app

#endif  // QUIRE_APPS_CURVE_SVG_H_
