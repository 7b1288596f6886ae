// To Python: what a switch has on Ethernet only.
#pragma once

#include <nanobind/nanobind.h>

#include "switchagg/native/switch/native_switch.h"

namespace switchagg {

void bind_ethernet(nanobind::class_<NativeSwitch>& native);

}  // namespace switchagg
