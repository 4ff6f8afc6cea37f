// griddepcontrol (PTX ISA): grids run one after another here, so that there is nothing to wait for. It is counted.
#include "scheduler.hpp"

void tw_griddepcontrol_wait() { ++tw::g_counts.dependency_waits; }

void tw_griddepcontrol_launch_dependents() { ++tw::g_counts.dependency_launches; }
